"""A relay of a test, in a thread of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pccl._relay import Relay


@contextlib.contextmanager
def carried(relay: Relay) -> Iterator[Relay]:
    """It joins connections until the end of the block, and is closed then."""
    stops = threading.Event()

    def carry() -> None:
        while not stops.is_set():
            relay.turn(0.02)
        relay.close()

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        stops.set()
        thread.join()
