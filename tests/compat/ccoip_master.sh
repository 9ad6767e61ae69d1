#!/bin/sh
# ccoip_master.sh PROGRAM: it serves until SIGINT or SIGTERM, and ends with status 0. Skipped (77) where its port is taken.
set -eu

# Whether it handles SIGTERM, and before that SIGINT: bit 14 of the signals that it catches.
is_ready() {
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$master/status" 2> /dev/null) || caught=0
    [ $((0x${caught:-0} & 0x4000)) -ne 0 ]
}

for number in INT TERM; do
    # A background job of a shell has SIGINT ignored, which the program's own handler undoes.
    "$1" & master=$!
    until is_ready; do
        grep -qs '^State:[[:space:]]*[^Z]' "/proc/$master/status" || { wait "$master" || exit 77; }
        sleep 0.05
    done
    kill "-$number" "$master"
    wait "$master"
done
