"""The master as a program: `pccl_master`, or `python -m pccl.master`."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys

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
) -> int:
    """Runs a master until SIGINT or SIGTERM and returns the exit status: 0, or 1 when it cannot listen.

    SIGINT ends the run. SIGTERM ends it with `on_sigterm` "end"; with "detach" the peers look for another master of their
    list, or wait for this one to come back. None: PCCL_MASTER_ON_SIGTERM says it, or else it is "detach".
    """
    received: queue.SimpleQueue[int] = queue.SimpleQueue()  # an Event locks itself out when a signal comes while it is set

    def note(number: int, _: object) -> None:
        received.put(number)

    try:
        choice = on_sigterm or os.environ.get("PCCL_MASTER_ON_SIGTERM") or "detach"
        if choice not in SIGTERM_CHOICES:
            raise ValueError(f"PCCL_MASTER_ON_SIGTERM={choice} is neither detach nor end")
        # Closed at the end of the block, whatever ends it.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, note)
        if masters is not None:
            check_masters(masters)
        with MasterNode(listen_address, heartbeat_limit=heartbeat_limit, masters=masters, advertise=advertise) as master:
            host = listen_address.rpartition(":")[0]
            print(f"pccl master listening on {host}:{master.port}", flush=True)
            if received.get() == signal.SIGTERM and choice == "detach":
                master.detach()
    except (PCCLError, ValueError, AssertionError) as error:
        print(f"pccl master cannot listen on {listen_address}: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> None:
    """The `pccl_master` script."""
    parser = argparse.ArgumentParser(
        prog="pccl_master",
        description="Runs the master of a pccl run. SIGINT ends the run. After SIGTERM peers look for another master of their "
        "list, or wait for this one to come back; with PCCL_MASTER_ON_SIGTERM=end that ends the run, too.",
    )
    parser.add_argument("--listen-address", default=DEFAULT_ADDRESS, help="host:port to listen on (default: %(default)s)")
    sys.exit(serve(parser.parse_args().listen_address))


if __name__ == "__main__":
    main()
