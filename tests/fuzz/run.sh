#!/usr/bin/env bash
# Runs every fuzz target of a build folder for some seconds, from the corpus of the repository and what earlier runs have found.
#   run.sh BUILD SECONDS JOBS [TARGET...]
# Inputs that crash are kept in BUILD/crashes, new ones of interest in BUILD/corpus.
set -euo pipefail
build=$(realpath "$1") seconds=$2 jobs=$3
shift 3
cd "$(dirname "$0")"
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(fuzz_*.c)
mkdir -p "$build/crashes"

one() {
  local name=$1 log=$2/$1.log found=$2/corpus/$1 status=0
  mkdir -p "$found" "corpus/$name"
  "$2/tests/fuzz/$name" -max_total_time="$3" -timeout=20 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$2/crashes/$name-" "$found" "corpus/$name" >"$log" 2>&1 || status=$?
  if [ $status -ne 0 ]; then
    echo "$name FAILED: $log"
    grep -E "does not hold|ERROR: |runtime error|SUMMARY|the input is in|Test unit written" "$log" || tail -n 5 "$log"
    return 1
  fi
  echo "$name: $(grep -E '^Done' "$log" | tail -n 1)"
}
export -f one
printf '%s\n' "${targets[@]%.c}" | xargs -P "$jobs" -I NAME bash -c "one NAME '$build' '$seconds'"
