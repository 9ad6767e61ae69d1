"""A relay of a test, with a thread of its own."""

from __future__ import annotations

from pathlib import Path

from pccl._core.address import parse_endpoint
from pccl._run.credentials import credentials
from pccl._run.relay import Relay


def relay_at(address: str, keys: Path | None, *, links: int = 64) -> Relay:
    """Listens at `host:port` for peers with these keys, or for everybody."""
    return Relay(parse_endpoint(address), credentials(keys, None, None, None), links=links)
