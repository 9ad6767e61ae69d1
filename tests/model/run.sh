#!/usr/bin/env bash
# Checks the model with SPIN, then that each mutation is found: run.sh BUILD. Needs spin and a C compiler.
set -euo pipefail
source=$(realpath "$(dirname "$0")/run.pml")
mkdir -p "$1"
cd "$1"

# Prints the number of errors and that of states.
explore() {
  local folder=$1
  shift
  rm -rf "$folder"
  mkdir "$folder"
  (
    cd "$folder"
    spin -a "$@" "$source" >spin.log
    ${CC:-cc} -O1 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=1024 -DMEMLIM=3000 -o pan pan.c
    ./pan -m300000 >pan.log || true
    # What was not explored proves nothing.
    ! grep -E "max search depth too small|out of memory|aborted" pan.log >&2
    sed -n 's/.* errors: \([0-9]*\).*/\1/p; s/^ *\([0-9]*\) states, stored.*/\1/p' pan.log | paste -sd ' '
  )
}

check() {
  local name=$1 want=$2 states errors
  shift 2
  read -r errors states < <(explore "$name" "$@") || true
  [ "$errors" = "$want" ] || { echo "model: $name has $errors errors, not $want; see $PWD/$name (spin -t -p -k run.pml.trail $source)" && return 1; }
  echo "model: $name: $states states, as it should be: $([ "$want" = 0 ] && echo 'all claims hold' || echo 'found')"
}
export source
export -f explore check
printf '%s\n' 'claims 0' 'NO_FENCING 1 -DNO_FENCING' 'EARLY_COMMIT 1 -DEARLY_COMMIT' 'HALF_QUORUM 1 -DHALF_QUORUM' 'NO_HISTORY 1 -DNO_HISTORY' \
  'SHORT_HISTORY 1 -DSHORT_HISTORY' | xargs -P "$(nproc)" -I LINE bash -euo pipefail -c 'check LINE'
