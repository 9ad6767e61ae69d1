#!/bin/sh
# without.sh CMAKE SOURCE SCRATCH GENERATOR MAKE_PROGRAM: a build without OpenSSL and LZ4 says so in its last lines.
set -eu
rm -rf "$3"
"$1" -G "$4" -DCMAKE_MAKE_PROGRAM="$5" -S "$2" -B "$3" -DPCCL_LZ4=OFF -DPCCL_TLS=OFF -DCMAKE_BUILD_TYPE=Debug > /dev/null
last=$("$1" --build "$3" | tail -2)
echo "$last" | grep -q 'built without encryption.*install libssl-dev'
echo "$last" | grep -q 'built without LZ4.*install liblz4-dev'
