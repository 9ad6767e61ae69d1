"""What can reduce in a stress run: pccl, or a system that it is compared with, whose peers are in bench/stress of a checkout."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pccl
from pccl.lab.link import Order
from pccl.stress.workload import MIXED, TRAININGS

OTHERS = Path(pccl.__file__).parents[1] / "bench" / "stress"
"""The peers of other systems: they are measured from a checkout, and are no part of the package."""


class Groups(Protocol):
    """Makes new groups of processes whose groups do not survive a death."""

    formed: int

    def waits(self, serial: int) -> None:
        """It is in no group."""

    def gone(self, serial: int) -> None:
        """It has ended."""

    def orders(self, now: float, living: Collection[int]) -> list[tuple[int, Order]]:
        """What to tell whom."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One of them; peer, trainer and master are `module:function`, see lab.processes."""

    peer: str
    master: str
    trainer: str = ""  # a peer that trains by pccl.diloco
    needs: tuple[str, ...] = ()  # packages, beside those of every run
    grouped: bool = False  # by the orchestrator

    @property
    def own(self) -> bool:
        """It is pccl, whose peers wait for a lost master."""
        return self.peer.startswith("pccl.")

    def life(self, workload: str) -> str:
        """Of a peer; empty: it has none with this workload."""
        return self.peer if workload == MIXED else self.trainer

    def missing(self, workload: str = MIXED) -> list[str]:
        """Packages that are not installed."""
        needs = {"numpy", "matplotlib", *self.needs, *(["torch"] if workload in TRAININGS else [])}
        return sorted(name for name in needs if importlib.util.find_spec(name) is None)

    def there(self) -> bool:
        """Its peers can be run: those of others need a checkout."""
        return self.own or OTHERS.is_dir()

    def groups(self, patience: float) -> Groups | None:
        """Who makes the groups, where that is the orchestrator; a member may take `patience` seconds to come."""
        if not self.grouped:
            return None
        if str(OTHERS) not in sys.path:
            sys.path.append(str(OTHERS))
        groups: Groups = importlib.import_module("groups").Agent(patience)
        return groups


BACKENDS = {
    "pccl": Backend(peer="pccl.stress.worker:run", master="pccl.stress.worker:serve_master", trainer="pccl.stress.trainer:run"),
    "gloo": Backend(peer="gloo_peer:run", master="gloo_peer:serve", needs=("torch",), grouped=True),
    "torchft": Backend(peer="torchft_peer:run", master="torchft_peer:serve", needs=("torch", "torchft")),
}
