"""How a process becomes the supervisor of its program (`pccl._run.supervisor`)."""

from __future__ import annotations

import os
import signal
import sys

from pccl._exports import publish
from pccl._host.processes import SUPERVISED, prepare_child, python
from pccl._host.waits import LEFT_STATUS, LEFT_STATUS_VARIABLE, PIPE_VARIABLE


def supervise() -> None:
    """Lets a supervisor absorb the death of this process, if a launcher has started it: torchrun, which sets LOCAL_RANK.

    To be called before anything else, while the process has one thread. The program goes on in a child of the process, which
    becomes the supervisor. Without a launcher, and under a supervisor, it does nothing.
    """
    if "LOCAL_RANK" not in os.environ or os.environ.get("PCCL_SUPERVISED") == "1":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    told, tells = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISED)
    supervisor = os.getpid()
    child = os.fork()
    if child != 0:
        os.set_inheritable(told, True)
        command = [sys.executable, *sys.orig_argv[1:]]
        become_supervisor(["--child", str(child), "--pipe", str(told), *command], os.environ.get("PCCL_RESTARTS", ""))
    os.close(told)
    prepare_child(supervisor)
    os.environ["PCCL_SUPERVISED"] = "1"
    os.environ[PIPE_VARIABLE] = str(tells)
    os.environ[LEFT_STATUS_VARIABLE] = str(LEFT_STATUS)


def become_supervisor(command: list[str], restarts: str) -> None:
    """Puts the supervisor of a command in the place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, "PCCL_RESTARTS": restarts}
    os.execve(sys.executable, python("from pccl._run.supervisor import main; main()", *command), environment)


publish(globals())
