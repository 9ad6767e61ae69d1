#!/bin/sh
# ccoip_master.sh PROGRAM: it serves until SIGINT or SIGTERM, and ends with status 0. Skipped (77) where its port is taken.
# What becomes of a run is in tests/python/test_master.py.
set -eu

# Whether it handles SIGTERM, and before that SIGINT: bit 14 of the signals that it catches.
is_ready() {
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$master/status" 2> /dev/null) || caught=0
    [ $((0x${caught:-0} & 0x4000)) -ne 0 ]
}

unset PCCL_LOG_LEVEL
said=$(mktemp)
trap 'rm -f "$said"' EXIT
for row in INT: TERM: TERM:end TERM:detach; do
    # A background job of a shell has SIGINT ignored, which the program's own handler undoes.
    PCCL_MASTER_ON_SIGTERM=${row#*:} "$1" 2> "$said" & master=$!
    until is_ready; do
        grep -qs '^State:[[:space:]]*[^Z]' "/proc/$master/status" || { wait "$master" || exit 77; }
        sleep 0.05
    done
    kill "-${row%:*}" "$master"
    wait "$master"
    grep -q "stopped: no run was under way" "$said" || { echo "$row:"; cat "$said"; exit 1; }
done
if PCCL_MASTER_ON_SIGTERM=nonsense "$1" 2> "$said"; then exit 1; fi
grep -q "PCCL_MASTER_ON_SIGTERM=nonsense is neither detach nor end" "$said"
