"""What `Communicator.diagnose` returns: the reports of a run's members, and findings about them (docs/diagnosis.md)."""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from pccl._core.errors import LossReason
from pccl._exports import publish


class FindingKind(enum.Enum):
    """What is wrong with a member, or with the way from one member to another one."""

    STRAGGLER = 1
    """The member begins ops later than the others: it computes for longer."""
    SLOW_SENDER = 2
    """What the member sends leaves it slowly, to whomever it goes."""
    SLOW_RECEIVER = 3
    """What goes to the member is taken slowly, from whomever it comes."""
    SLOW_EDGE = 4
    """The way from `member` to `other` is slow, and other ways of both are not."""
    LOSS = 5
    """Packets are lost on the way from `member` to `other`."""
    HUNG = 6
    """The member does nothing, and the others wait for it in an op."""


COUNTS_ONLY = (
    "The run has {peers} members, in epoch {epoch}. The master shows members, links and findings only to those who may see them. "
    "To see them, run this command as the master's user on the master's host, or call diagnose() in a member."
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that makes ops slow."""

    kind: FindingKind
    member: UUID  # of an edge, the sender
    other: UUID | None  # of an edge, the receiver; None: the finding is of the member
    value: (
        float  # measured: seconds (STRAGGLER, HUNG), bytes per second that wait (SLOW_*), fraction of segments sent again (LOSS)
    )
    usual: float  # the same of the others
    cost: float  # fraction of the time of an op that is spent on it, 0 to 1
    confidence: float  # 0 to 1
    text: str  # the evidence, in words

    def __str__(self) -> str:
        return self.text


AT_RISK = "steps_at_risk"
"""The number of a member: how many steps a loss would cost now."""

MISSING = "without_"
"""Begins the names of numbers of a member that are 1 while the protection behind it is missing."""


@dataclass(frozen=True, kw_only=True)
class MemberReport:
    """What a member tells of its own ops. Sums are over the last seconds in which ops of it ended."""

    uuid: UUID
    group: int
    address: str  # where other members reach it
    silent_seconds: float  # since the master has heard anything of it
    told_seconds: float | None  # since it has told what follows; None: never
    span_seconds: float  # that the sums are of
    recent_seconds: float  # that the sums of what it has seen of others are of
    ops: float  # calls that ended
    op_seconds: float  # from each one's launch to its end, together
    processor_seconds: float  # that the thread of its data plane had
    live: int  # calls that have not ended
    oldest_seconds: float  # since the first of them was launched
    still_seconds: float  # since anything of an op came, went or ended
    begins_seconds: float  # how much later than the first of its group it begins an op, on average
    name: str = ""  # what logs call it; empty: it has none
    rank: int = 0  # in its group
    report: dict[str, float] = field(default_factory=dict)  # numbers of its program (Communicator.report)
    state_revision: int | None = None  # of the shared state after its last successful sync; None: none has succeeded
    state_hash: str = ""  # of that state, 32 hexadecimal digits; empty: unknown, because another master served the run then
    state_replaced: bool = False  # it had synced before, and its content of that revision was another than its group's

    @property
    def missing(self) -> tuple[str, ...]:
        """The protections that it has said to be missing (docs/operations.md#protections)."""
        return tuple(name.removeprefix(MISSING) for name, value in self.report.items() if name.startswith(MISSING) and value)


@dataclass(frozen=True, kw_only=True)
class EdgeReport:
    """What a member has seen of another one."""

    member: UUID  # who tells
    other: UUID  # of whom
    awaited: int  # calls under way of which nothing has come from there
    acked_bytes: float  # sent there and acknowledged
    busy_seconds: float  # in which bytes were under way there
    window_seconds: float  # of these, in which the receive window there was full
    segments: float
    retransmits: float  # those sent again all the time, not in bursts, as where a queue overflows
    samples: float  # looks at the links while a large op ran
    backlogged: float  # of these, those that found bytes waiting to be sent
    loaded_seconds: float  # the mean round trip of the latter, with what waits on the way; 0: there were none
    entries: float  # ops in which the other one comes next in the ring
    late_seconds: float  # how much later than `member` itself `other` was heard to begin them, together
    early_seconds: float  # likewise, how much earlier
    round_trip_seconds: float  # the shortest of late
    queue_seconds: float  # how much longer than at best what `other` sends is on its way here
    by_memory: bool  # large tensors pass there by memory, and the numbers above are of the little that connections carry
    lanes: int  # connections that carry large tensors there, beside the direct one
    reason: str  # why so many do


COPIES, RECEIVES, SPARE = "copies the state", "receives the state in its first sync", "waits as a spare"
JOINING = (COPIES, "waits to be admitted", "makes its links", RECEIVES, SPARE)
"""What a peer does on its way into the run, by the numbers of C."""


@dataclass(frozen=True, kw_only=True)
class JoinerReport:
    """A peer on its way into the run: a newcomer, or a member that its first sync brings the state."""

    uuid: UUID
    group: int
    address: str
    does: str  # one of JOINING
    done_bytes: int = 0  # of the state, that it has compared or copied beside the members' steps, and holds
    total_bytes: int = 0  # of the state; 0: the members have none yet, or it does not copy it beforehand
    progress_seconds: float = 0.0  # in which it has done `done_bytes`
    wait_seconds: float = 0.0  # since it came; of a first sync, since it called it
    name: str = ""  # what logs call it; empty: it has none

    @property
    def eta_seconds(self) -> float | None:
        """When the copy ends at the rate so far, from its last report; None: that is not known."""
        if self.done_bytes == 0 or self.progress_seconds == 0:
            return None
        return self.progress_seconds * (self.total_bytes - self.done_bytes) / self.done_bytes

    @property
    def missing(self) -> tuple[str, ...]:
        """The protection that it lacks, as `MemberReport.missing`: its copy is over, and it holds less than half of the state."""
        if self.does == COPIES or 2 * self.done_bytes >= self.total_bytes:
            return ()
        return ("spare" if self.does == SPARE else "precopy",)

    def __str__(self) -> str:
        text = f"{self.name or self.uuid.hex[:8]} {self.does}"
        if self.total_bytes and self.does != RECEIVES:
            text += f": {self.done_bytes / 1e6:.0f} of {self.total_bytes / 1e6:.0f} MB"
        return text if self.eta_seconds is None else f"{text}, about {self.eta_seconds:.0f} s left"


@dataclass(frozen=True, kw_only=True)
class DepartureReport:
    """A member that is gone, and why."""

    uuid: UUID
    group: int
    rank: int  # in its group, before it went
    reason: LossReason
    ago_seconds: float
    why: str = ""  # what the master says of it
    name: str = ""  # what logs call it; empty: it has none

    @property
    def text(self) -> str:
        """What became of it, such as "was lost (died: its connection ended)"."""
        kind, why = self.reason.name.lower(), f": {self.why}" if self.why else ""
        if self.reason.lost and self.reason is not LossReason.EXPELLED:
            return f"was lost ({kind}{why})"
        return f"{kind if self.reason in (LossReason.LEFT, LossReason.ENDED) else f'was {kind}'}{why}"

    def __str__(self) -> str:
        who = ", ".join(filter(None, (self.name, self.uuid.hex[:8])))
        return f"rank {self.rank} ({who}) {self.text}, {self.ago_seconds:.0f} s ago"


@dataclass(frozen=True)
class Diagnosis:
    """What a run's members have seen in the last seconds, and what is made of it."""

    findings: tuple[Finding, ...]  # the gravest first; empty: nothing is found to be wrong
    members: tuple[MemberReport, ...]  # in the order of the ring, group by group
    edges: tuple[EdgeReport, ...]  # of very many members, a part
    heartbeat_limit_seconds: float
    counts_only: bool = False  # the master takes the caller for a stranger, and told no more than the two counts below
    peer_count: int = 0  # members of the run; 0: the master serves no run
    epoch: int = 0  # in force
    generation: int = 0  # of the master; grows with each master of the run
    votes: int = 0  # that have ended in the run
    joiners: tuple[JoinerReport, ...] = ()  # of very many, a part
    departures: tuple[DepartureReport, ...] = ()  # the last 64 members that went, the newest last; also of earlier runs

    def to_json(self) -> dict[str, Any]:
        """The same in what `json` writes: ids as text, kinds in lower case."""
        whole = {
            name: [_plain(one) for one in value] if isinstance(value, tuple) else value for name, value in vars(self).items()
        }
        for joiner, told in zip(self.joiners, whole["joiners"], strict=True):
            told["eta_seconds"] = joiner.eta_seconds
        return whole

    def __str__(self) -> str:
        if self.counts_only:
            return COUNTS_ONLY.format(peers=self.peer_count, epoch=self.epoch)
        return "\n".join(finding.text for finding in self.findings) or "no finding: nothing slows operations down"


def finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """Numbers of a program as JSON has them: None in place of NaN and infinity."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _plain(item: Any) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in asdict(item).items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, (FindingKind, LossReason)):
        return value.name.lower()
    return finite(value) if isinstance(value, dict) else value


publish(globals())
