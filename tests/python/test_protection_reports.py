"""Which protections of a peer are missing, as it reports them."""

from __future__ import annotations

from typing import Any

from pccl._core.errors import PCCLError, Result
from pccl._peer.membership import Membership


def test_a_report_that_fails_is_made_again():
    told: list[dict[str, float]] = []

    class Peer(Membership):
        def __init__(self) -> None:
            self.fails, self._missing = True, set()

        def report(self, **numbers: float) -> None:
            if self.fails:
                raise PCCLError(Result.INVALID_USAGE, "report")
            told.append(numbers)

    peer: Any = Peer()
    peer._note_protections(parity=True)
    peer.fails = False
    for missing in (True, True, False):
        peer._note_protections(parity=missing)
    assert told == [{"without_parity": 1.0}, {"without_parity": 0.0}]
