"""How a process becomes the supervisor of its program (`pccl._supervisor`)."""

from __future__ import annotations

import os
import sys


def supervise() -> None:
    """Lets a supervisor absorb the death of this process, if a launcher has started it: torchrun, which sets LOCAL_RANK.

    To be called before anything else. The first call does not return: the process becomes the supervisor, and the program
    begins anew as its child, in which the call does nothing. Without a launcher it does nothing, either.
    """
    if "LOCAL_RANK" in os.environ and os.environ.get("PCCL_SUPERVISED") != "1":
        become_supervisor([sys.executable, *sys.orig_argv[1:]], os.environ.get("PCCL_RESTARTS", ""))


def become_supervisor(command: list[str], restarts: str) -> None:
    """Puts the supervisor of a command in the place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, "PCCL_RESTARTS": restarts}
    os.execve(sys.executable, [sys.executable, "-m", "pccl._supervisor", *command], environment)
