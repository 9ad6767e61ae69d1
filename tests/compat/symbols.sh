#!/bin/sh
# symbols.sh LIBRARY HEADER...: the library exports exactly the functions of the headers, 33 of them, and needs nothing but the C runtime, and liblz4 and OpenSSL where it was built with them.
set -eu
library=$1
shift
exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sort)
declared=$(sed -n 's/^PCCL_EXPORT .*[ *]\(pccl[A-Za-z]*\)(.*/\1/p' "$@" | sort)
[ "$exported" = "$declared" ] || { printf 'exported:\n%s\ndeclared:\n%s\n' "$exported" "$declared"; exit 1; }
[ "$(echo "$exported" | wc -l)" -eq 33 ] || { echo 'not 33 functions'; exit 1; }
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v -e '^libc\.' -e '^libm\.' -e '^liblz4\.' -e '^libssl\.' -e '^libcrypto\.' -e '^ld-linux' || true)
[ -z "$needed" ] || { printf 'needs %s\n' "$needed"; exit 1; }
