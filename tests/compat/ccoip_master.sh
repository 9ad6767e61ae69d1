#!/bin/sh
# ccoip_master.sh PROGRAM: it serves until SIGINT or SIGTERM, and ends with status 0. Skipped (77) where its port is taken.
set -eu
for number in INT TERM; do
    # A background job of a shell has SIGINT ignored, which the program's own handler undoes.
    "$1" & master=$!
    sleep 0.3
    kill -0 "$master" 2> /dev/null || { wait "$master" || exit 77; }
    kill "-$number" "$master"
    wait "$master"
done
