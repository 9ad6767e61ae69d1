"""The master as a program: `pccl_master`, or `python -m pccl.master`.

It needs the standard library and cffi alone, as the backend of torch.distributed does, which starts it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable

from pccl._address import parse_endpoints
from pccl._errors import PCCLError
from pccl._loader import load_native_module
from pccl._master import MasterNode

_, _C = load_native_module()

DEFAULT_ADDRESS = f"0.0.0.0:{_C.CCOIP_PROTOCOL_PORT_MASTER}"


SIGTERM_CHOICES = ("detach", "end")


def check_masters(masters: str) -> None:
    """ValueError: what is wrong with a list of masters, by the name of the option."""
    try:
        parse_endpoints(masters)
    except (ValueError, AssertionError) as error:
        raise ValueError(f"--masters: {error}") from None


def serve(
    listen_address: str,
    heartbeat_limit: float | None = None,
    masters: str | None = None,
    on_sigterm: str | None = None,
    advertise: str | None = None,
    until_empty: float | None = None,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Runs a master until SIGINT or SIGTERM and returns the exit status: 0, or 1 when it cannot listen.

    SIGINT ends the run. SIGTERM ends it with `on_sigterm` "end"; with "detach" the peers look for another master of their
    list, or wait for this one to come back. None: PCCL_MASTER_ON_SIGTERM says it, or else it is "detach". With `until_empty`
    it also ends as MasterNode does. `ready` is called once it listens and has printed that.
    """
    received: queue.SimpleQueue[int] = queue.SimpleQueue()  # an Event locks itself out when a signal comes while it is set

    def note(number: int, _: object) -> None:
        received.put(number)

    def await_end() -> None:
        with contextlib.suppress(PCCLError):
            master.wait()
        received.put(0)

    try:
        choice = on_sigterm or os.environ.get("PCCL_MASTER_ON_SIGTERM") or "detach"
        if choice not in SIGTERM_CHOICES:
            raise ValueError(f"PCCL_MASTER_ON_SIGTERM={choice} is neither detach nor end")
        # Closed at the end of the block, whatever ends it.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, note)
        if masters is not None:
            check_masters(masters)
        node = MasterNode(
            listen_address, heartbeat_limit=heartbeat_limit, masters=masters, advertise=advertise, until_empty=until_empty
        )
        with node as master:
            host = listen_address.rpartition(":")[0]
            print(f"pccl master listening on {host}:{master.port}", flush=True)
            ready()
            if until_empty is not None:
                threading.Thread(target=await_end, daemon=True).start()
            if received.get() == signal.SIGTERM and choice == "detach":
                master.detach()
    except (PCCLError, ValueError, AssertionError) as error:
        print(f"pccl master cannot listen on {listen_address}: {error}", file=sys.stderr)
        return 1
    return 0


def serve_in_background(log: str | None, run: Callable[[Callable[[], None]], int]) -> int:
    """`run`, which is `serve` but for its `ready`, in a process of its own; returns once that listens, or has ended.

    It is in a session of its own, with `/` as its directory and no open file of this process. What it prints and logs goes to
    the end of the file `log`, or nowhere. What it says before it listens goes where this process prints.
    """
    try:
        target = os.open(log or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        print(f"pccl master cannot write its log to {log}: {error.strerror}", file=sys.stderr)
        return 1
    told, tells = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
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
    return 0 if listens else 1


def _print_to(target: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def main() -> None:
    """The `pccl_master` script."""
    parser = argparse.ArgumentParser(
        prog="pccl_master",
        description="Runs the master of a pccl run. SIGINT ends the run. After SIGTERM peers look for another master of their "
        "list, or wait for this one to come back; with PCCL_MASTER_ON_SIGTERM=end that ends the run, too.",
    )
    parser.add_argument(
        "--listen-address", "--listen", default=DEFAULT_ADDRESS, help="host:port to listen on (default: %(default)s)"
    )
    parser.add_argument("--masters", help="all masters of the run, this one among them: host:port,host:port")
    parser.add_argument("--on-sigterm", choices=SIGTERM_CHOICES, help="whether SIGTERM ends the run")
    parser.add_argument("--until-empty", type=float, metavar="SECONDS", help="end once nobody has had a peer for so long")
    parser.add_argument("--background", action="store_true", help="return once it listens")
    parser.add_argument("--log", metavar="FILE", help="with --background: where its log goes; left out: nowhere")
    options = parser.parse_args()

    def run(ready: Callable[[], None] = lambda: None) -> int:
        return serve(
            options.listen_address,
            masters=options.masters,
            on_sigterm=options.on_sigterm,
            until_empty=options.until_empty,
            ready=ready,
        )

    sys.exit(serve_in_background(options.log, run) if options.background else run())


if __name__ == "__main__":
    main()
