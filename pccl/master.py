"""The master as a program: `pccl_master`, or `python -m pccl.master`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from pccl._errors import PCCLError
from pccl._loader import load_native_module
from pccl._master import MasterNode

_, _C = load_native_module()

DEFAULT_ADDRESS = f"0.0.0.0:{_C.CCOIP_PROTOCOL_PORT_MASTER}"


def serve(listen_address: str, heartbeat_limit: float | None = None, masters: str | None = None) -> int:
    """Runs a master until SIGINT or SIGTERM and returns the exit status: 0, or 1 when it cannot listen."""
    stop = threading.Event()
    try:
        # Closed at the end of the block, whatever ends it.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        with MasterNode(listen_address, heartbeat_limit=heartbeat_limit, masters=masters) as master:
            host = listen_address.rpartition(":")[0]
            print(f"pccl master listening on {host}:{master.port}", flush=True)
            stop.wait()
    except (PCCLError, ValueError, AssertionError) as error:
        print(f"pccl master cannot listen on {listen_address}: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> None:
    """The `pccl_master` script."""
    parser = argparse.ArgumentParser(prog="pccl_master", description="Runs the master of a pccl run.")
    parser.add_argument("--listen-address", default=DEFAULT_ADDRESS, help="host:port to listen on (default: %(default)s)")
    sys.exit(serve(parser.parse_args().listen_address))


if __name__ == "__main__":
    main()
