"""The master as a program: `pccl master`, `pccl_master`, or `python -m pccl.master`.

A native program serves if the arguments are right (`pccl_command.native_master`). `pccl.cli.master` says what is wrong with
others. This module serves in builds that lack the native program.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that the native program does without
    import pccl_command

    pccl_command.master()

import contextlib
import os
import signal
import sys
import threading

from pccl._core.address import parse_endpoints, without_run
from pccl._core.calls import call
from pccl._core.errors import PCCLError, Result
from pccl._core.library import _C
from pccl._host.files import open_log
from pccl._run.master import MasterNode
from pccl_command.native_master import SIGTERM_CHOICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

PRIVILEGED_PORTS = 1024
"""Ports below this one need a privilege on Linux."""


def serve(
    listen_address: str,
    *,
    masters: str | None = None,
    on_sigterm: str | None = None,
    until_empty: float | None = None,
    ready: Callable[[], None] = lambda: None,
    **settings: Any,
) -> int:
    """Runs a master until SIGINT or SIGTERM and returns the exit status: 0, 1 if it cannot listen, 2 for wrong arguments.

    SIGINT ends the run. SIGTERM ends it with `on_sigterm` "end"; with "detach" the peers look for another master of their
    list, or wait for this one to come back. None: PCCL_MASTER_ON_SIGTERM says it, or else it is "detach". With `until_empty`
    it also ends as MasterNode does. `ready` is called once it listens and has printed that. `masters` and `settings` as for
    MasterNode, but it does not listen on a wildcard without keys or `insecure`.
    """
    # An Event locks itself out when a signal comes while it is set. A signal may come late, so nobody closes the pipe.
    ended, ends = os.pipe()

    def note(number: int, _: object) -> None:
        os.write(ends, bytes([number]))

    def await_end() -> None:
        with contextlib.suppress(PCCLError):
            master.wait()
        os.write(ends, bytes([0]))

    choice = on_sigterm or os.environ.get("PCCL_MASTER_ON_SIGTERM") or "detach"
    if choice not in SIGTERM_CHOICES:
        print(f"pccl master: PCCL_MASTER_ON_SIGTERM={choice} is neither detach nor end", file=sys.stderr)
        return 2
    # Closed at the end of the block, whatever ends it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    try:
        try:
            without_run(parse_endpoints(masters) if masters is not None else [])
        except (ValueError, AssertionError) as error:
            raise ValueError(f"--masters: {error}") from None
        try:
            node = MasterNode(listen_address, masters=masters, until_empty=until_empty, **settings)
            call(node._handle, "pccl_ext_master_check_command", name="pcclRunMaster")
        except PCCLError as error:
            if error.result is not Result.INVALID_ARGUMENT:
                raise
            raise ValueError(error.detail) from None
        with node as master:
            host = listen_address.rpartition(":")[0]
            print(f"pccl master listening on {host}:{master.port}", flush=True)
            ready()
            if until_empty is not None:
                threading.Thread(target=await_end, daemon=True).start()
            if os.read(ended, 1)[0] == signal.SIGTERM and choice == "detach":
                master.detach()
    except (ValueError, AssertionError) as error:
        _print_failure(listen_address, str(error))
        return 2
    except PCCLError as error:
        _print_failure(listen_address, _why(error, listen_address))
        return 1
    return 0


def _print_failure(listen_address: str, why: str) -> None:
    on = "" if listen_address in why else f" on {listen_address}"
    print(f"pccl master cannot listen{on}: {why}", file=sys.stderr)


def _why(error: PCCLError, listen_address: str) -> str:
    """Returns the reason why a master cannot listen, and what to do."""
    port = int(listen_address.rpartition(":")[2])
    if "Permission denied" in error.detail and 0 < port < PRIVILEGED_PORTS:
        return (
            f"Permission denied; a port below {PRIVILEGED_PORTS} needs root or CAP_NET_BIND_SERVICE: "
            f"choose a higher port, such as {_C.CCOIP_PROTOCOL_PORT_MASTER}"
        )
    return error.detail or str(error)


def serve_in_background(log: str | None, run: Callable[[Callable[[], None]], int]) -> int:
    """`run`, which is `serve` but for its `ready`, in a process of its own; returns once that listens, or has ended.

    It is in a session of its own, with `/` as its directory and no open file of this process. What it prints and logs goes to
    the end of the file `log`, or nowhere. What it says before it listens goes where this process prints.
    """
    try:
        target = open_log(log) if log else os.open(os.devnull, os.O_WRONLY)
    except OSError as error:
        print(f"pccl master cannot write its log to {log}: {error.strerror}", file=sys.stderr)
        return 1
    told, tells = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            os.chdir("/")
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(tells, 1)
            os.dup2(tells, 2)
            os.closerange(3, target)
            os.closerange(target + 1, tells + 2)
            status = run(lambda: _print_to(target))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(tells)
    os.close(target)
    with open(told, encoding="utf-8", errors="replace") as words:
        said = words.read()
    listens = "listening on" in said
    print(said, end="", flush=True, file=sys.stdout if listens else sys.stderr)
    return 0 if listens else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1


def _print_to(target: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def main(arguments: Sequence[str] | None = None, *, program: str = "pccl_master") -> NoReturn:
    """Runs `pccl_master`; `arguments` default to those of the process, which becomes the native program, or ends."""
    import pccl_command

    pccl_command.run_master(program, sys.argv[1:] if arguments is None else list(arguments))
