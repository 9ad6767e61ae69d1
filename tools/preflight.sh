#!/bin/sh
# Looks for what a build needs before anything is downloaded or compiled: preflight.sh PYTHON.
# Status 0: all is there. Status 1: the first line says what to install, with the command for this system.
set -u
python=${1:-python3}
cc=${CC:-cc}
debian='' fedora='' arch='' missing=''

# need WHAT DEBIAN FEDORA ARCH: notes one thing that is missing, and its packages.
need() {
  missing="$missing${missing:+, }$1"
  debian="$debian $2" fedora="$fedora $3" arch="$arch $4"
}

# CC may hold options too.
compiles() { printf '%s\n' "$1" | $cc -x c -fsyntax-only - 2>/dev/null; }

if ! command -v "$python" >/dev/null 2>&1; then
  need "Python 3.11 or later ($python)" 'python3 python3-venv python3-dev' python3-devel python
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "pccl needs Python 3.11 or later, and $python is $("$python" -c 'import platform; print(platform.python_version())'):" \
    "install a newer one and name it, for example: make PYTHON=python3.11" >&2
  exit 1
else
  "$python" -c 'import ensurepip, venv' 2>/dev/null || need "Python's venv module" python3-venv python3 python
  headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -f "$headers/Python.h" ] || need "Python's headers (Python.h)" python3-dev python3-devel python
fi
if ! command -v "${cc%% *}" >/dev/null 2>&1; then
  need "a C compiler ($cc)" 'gcc libc6-dev' gcc gcc
elif ! compiles '#include <pthread.h>'; then
  need "the headers of the C library" libc6-dev glibc-devel glibc
fi
[ -n "$missing" ] || exit 0

systems=$(. /etc/os-release 2>/dev/null && echo " ${ID:-} ${ID_LIKE:-} ")
case $systems in
*' debian '* | *' ubuntu '*) how="apt-get install$debian" ;;
*' fedora '* | *' rhel '*) how="dnf install$fedora" ;;
*' arch '*) how="pacman -S$arch" ;;
*) how="on Debian and Ubuntu: apt-get install$debian; on Fedora: dnf install$fedora; on Arch: pacman -S$arch" ;;
esac
echo "pccl cannot be built: $missing not found. Install (as root): $how" >&2
exit 1
