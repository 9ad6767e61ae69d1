"""What a peer's process is told, and what it tells: JSON lines on a socket of its own.

Times are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pccl.lab import reports


@dataclass(frozen=True, kw_only=True)
class Task(reports.Record):
    """One process's part in the run."""

    serial: int  # of the process, from 0
    slot: int  # the place of a peer, which several processes take one after another
    code: int  # by which its contributions are known
    masters: str  # host:port, or several of them
    seed: int
    elements: int  # the largest op's
    beat: float  # the heartbeat limit in seconds
    backend: str = "pccl"
    plant: str = ""  # a deliberate fault, for tests of the harness
    board: int = -1  # the descriptor of progress.Board


@dataclass(frozen=True)
class Range:
    """Elements of a result that have the same contributors: from where the range before ends."""

    stop: int
    who: int  # the codes in it by its content, a bit each
    peers: list[str] = field(default_factory=list)  # by the library's word; empty: it does not say


@dataclass(frozen=True, kw_only=True)
class OpDone(reports.Record):
    """One reduce that succeeded, as one peer saw it."""

    ranges: list[Range]  # one, if not in retry mode
    world: int  # contributors by the library's word, in retry mode at the end; 0: it does not say, op by op
    check: int  # a checksum of the result
    tries: int  # the failed ones, and the one that succeeded
    size: int  # bytes of the tensor
    at: float  # when it had succeeded

    @property
    def reduced(self) -> int:
        """Bytes of the tensors in it, those of all contributors."""
        begins = [0, *(one.stop for one in self.ranges)]
        parts = sum((one.stop - begin) * one.who.bit_count() for begin, one in zip(begins, self.ranges, strict=False))
        return self.size * parts // begins[-1]

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**given, "ranges": [Range(**one) for one in given["ranges"]]})


@dataclass(frozen=True, kw_only=True)
class Report(reports.Report):
    """What a peer tells."""

    at: float


@dataclass(frozen=True, kw_only=True)
class Accepted(Report):
    """The process is a member of the run."""

    world: int
    seconds: float  # that connecting took
    life: int  # how often it has been accepted before
    uuid: str = ""  # what the library calls this membership


@dataclass(frozen=True, kw_only=True)
class Stepped(Report):
    """A step is done. `line` and `step` name it; a new line begins where nobody is left that knew the one before."""

    line: int
    step: int
    work: str  # the kind of the step
    world: int  # after it
    ops: list[OpDone] = field(default_factory=list)
    state: str = ""  # the hash of the shared state after a sync
    received: int = 0  # bytes, by a sync
    lost: int = 0  # losses seen in it
    caught_up: bool = False  # the sync was for newcomers

    def __post_init__(self) -> None:
        told = [op if isinstance(op, OpDone) else OpDone.from_fields(op) for op in self.ops]  # from JSON
        object.__setattr__(self, "ops", told)


@dataclass(frozen=True, kw_only=True)
class Alone(Report):
    """No other member is left; the process waits for newcomers."""

    line: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Expelled(Report):
    """The library says that this process is no longer a member; it comes back as a new one."""

    detail: str


@dataclass(frozen=True, kw_only=True)
class Waiting(Report):
    """The process is in no group and waits for the orchestrator to make one; pccl's peers need none."""


@dataclass(frozen=True, kw_only=True)
class Flaw(Report):
    """The process saw what must not happen."""

    claim: str  # which one it breaks: a key of judge.CLAIMS
    detail: str


@dataclass(frozen=True, kw_only=True)
class Ended(Report):
    """The process has left the run, as it was told to."""

    line: int
    step: int
    state: str  # the hash of its shared state
