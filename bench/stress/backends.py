"""The systems that a stress run can test: pccl, or gloo and torchft to compare with."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from stress.groups import Agent
from stress.lab.link import Order
from stress.workload import MIXED, TRAININGS


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
        return self.trainer != ""

    def life(self, workload: str) -> str:
        """Of a peer; empty: it has none with this workload."""
        return self.peer if workload == MIXED else self.trainer

    def missing(self, workload: str = MIXED) -> list[str]:
        """Packages that are not installed."""
        needs = {"numpy", "matplotlib", *self.needs, *(["torch"] if workload in TRAININGS else [])}
        return sorted(name for name in needs if importlib.util.find_spec(name) is None)

    def groups(self, patience: float) -> Groups | None:
        """Who makes the groups, where that is the orchestrator; a member may take `patience` seconds to come."""
        return Agent(patience) if self.grouped else None


BACKENDS = {
    "pccl": Backend(peer="stress.worker:run", master="stress.worker:serve_master", trainer="stress.trainer:run"),
    "gloo": Backend(peer="stress.gloo_peer:run", master="stress.gloo_peer:serve", needs=("torch",), grouped=True),
    "torchft": Backend(peer="stress.torchft_peer:run", master="stress.torchft_peer:serve", needs=("torch", "torchft")),
}
