#!/bin/sh
# without_lz4.sh CMAKE SOURCE SCRATCH GENERATOR MAKE_PROGRAM: a build without LZ4 says so in its last line.
set -eu
rm -rf "$3"
"$1" -G "$4" -DCMAKE_MAKE_PROGRAM="$5" -S "$2" -B "$3" -DPCCL_LZ4=OFF -DCMAKE_BUILD_TYPE=Debug > /dev/null
"$1" --build "$3" | tail -1 | grep -q 'built without LZ4.*install liblz4-dev'
