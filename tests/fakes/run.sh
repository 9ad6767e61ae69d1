#!/usr/bin/env bash
# Builds everything with the fakes linked in, and runs tests on them: those in C on the fake transport, those in Python on the fake
# device too.
#   run.sh VENV SEED JOBS C_TESTS [PYTEST ARGUMENT...]
# It works in build/fakes, on a copy of the tree with an environment of its own: the extension that all other tests use is
# built into the source folder, and stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(realpath "$1") seed=$2 jobs=$3 c_tests=$4
shift 4
home=$PWD/build/fakes tree=$PWD/build/fakes/tree
rm -rf "$tree"
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard | tar --create --null --ignore-failed-read --files-from=- 2>/dev/null | tar --extract --directory "$tree"
[ -x "$home/venv/bin/python" ] || "$venv/bin/python" -m venv --without-pip "$home/venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$tree" "$packages" >"$("$home/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tree.pth"
"$venv/bin/cmake" -G Ninja "-DCMAKE_MAKE_PROGRAM=$venv/bin/ninja" -S "$tree" -B "$home/build" -DPCCL_FAKES=ON -DPCCL_CHECKS=ON -DPCCL_BUILD_TESTS=ON \
  -DPCCL_BUILD_EXTENSION=ON -DPCCL_SIMULATOR=ON -DPCCL_BUILD_SHARED=OFF "-DPython_EXECUTABLE=$venv/bin/python" >"$home/cmake.log"
# a test in C is a target of the same name
mapfile -t targets < <("$venv/bin/ctest" --test-dir "$home/build" --show-only -R "$c_tests" | sed -n 's/^ *Test *#[0-9]*: //p')
"$venv/bin/cmake" --build "$home/build" -j "$jobs" --target _native _sparse_forms _snapshot_kernels _simulator pccl_cuda spawned_master "${targets[@]}" >"$home/build.log" || { cat "$home/build.log"; exit 1; }
cd "$tree"
export PCCL_FAKE_TRANSPORT=$seed PCCL_TEST_PATIENCE=${PCCL_TEST_PATIENCE:-120}
"$venv/bin/ctest" --test-dir "$home/build" --no-tests=error --output-on-failure -j "$jobs" -R "$c_tests"
PCCL_FAKE_DEVICE=$seed "$home/venv/bin/python" -m pytest -q "$@"
