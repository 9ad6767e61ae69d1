#!/bin/sh
# find_package.sh CMAKE BUILD EXAMPLE SCRATCH: a project that knows only the installed package builds and runs.
set -eu
rm -rf "$4"
"$1" --install "$2" --prefix "$4/prefix" > /dev/null
library=$(find "$4/prefix" -name libpccl.so) # which loads the other one from its own folder
test -f "${library%/*}/libpccl_cuda.so"
"$1" -S "$3" -B "$4/build" -DCMAKE_PREFIX_PATH="$4/prefix" > /dev/null
"$1" --build "$4/build" > /dev/null
"$4/build/average"
