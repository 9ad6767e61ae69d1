"""What the orchestrator tells a peer's process, and what that process tells back.

A peer gets its task as one JSON argument and reports in JSON lines on a pipe of its own, so that nothing that a
library prints can be taken for a report. No torch here: the orchestrator does without it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Task:
    """One peer's part in the run."""

    index: int  # of this peer, from 0
    peers: int  # that start together
    newcomer: bool = False  # joins the others in the middle of the run
    shard: int  # of the text, from 0: what this peer learns from
    shards: int
    master: str  # host:port
    steps: int
    seed: int  # of the weights and the batches, alike on all peers that start together
    threads: int  # of torch
    report_fd: int
    data: str | None = None  # None: the standard library's text
    halt_in_step: int | None = None  # stand still in the middle of this step until killed; None: never
    halt_at_join: bool = False  # stand still while the others wait to hand the state over, until killed
    buckets: int = 4  # parts of the gradient, each reduced under its own tag
    digest_every: int = 10  # steps

    def to_json(self) -> str:
        """The argument of the peer's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Opposite of to_json."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Report:
    """Base of all reports; ``kind`` names the class on the wire."""

    kind: ClassVar[str]

    def to_line(self) -> str:
        """One line of JSON, with its line end."""
        return json.dumps({"kind": self.kind, **asdict(self)}) + "\n"

    @staticmethod
    def from_line(line: str | bytes) -> Report:
        """Opposite of to_line; a line that is no report raises ValueError."""
        try:
            fields = json.loads(line)
            return _KINDS[fields.pop("kind")](**fields)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a report: {line!r}") from error


@dataclass(frozen=True, kw_only=True)
class Prepared(Report):
    """Text and model are made; this peer connects when it reads a line from its standard input."""

    kind = "prepared"


@dataclass(frozen=True, kw_only=True)
class Ready(Report):
    """All peers are accepted and the first step begins."""

    kind = "ready"
    world: int
    parameters: int
    validation: float


@dataclass(frozen=True, kw_only=True)
class Stepped(Report):
    """A step is done."""

    kind = "stepped"
    step: int  # steps done, from 1
    loss: float  # nats per character, of this peer's own batch before the update
    world: int
    tokens: int  # characters of this peer's batch
    tx_bytes: int
    rx_bytes: int
    digest: str | None  # of the state, every few steps


@dataclass(frozen=True, kw_only=True)
class Recovered(Report):
    """A peer was lost during this step; what failed was launched again, and the gradients are averaged now."""

    kind = "recovered"
    step: int
    failed: int  # reduces that failed
    buckets: int  # reduces of a step
    world: int  # that is left
    at: float  # when the gradients were averaged; seconds of the monotonic clock, one for all processes


@dataclass(frozen=True, kw_only=True)
class Halted(Report):
    """This peer stands still where a death hurts most, and waits to be killed."""

    kind = "halted"
    step: int | None  # None: the peer had none yet
    place: str  # in words


@dataclass(frozen=True, kw_only=True)
class Joined(Report):
    """This newcomer holds the state of the others, and goes on where they are."""

    kind = "joined"
    step: int  # steps that the state has seen
    world: int
    rx_bytes: int
    leaves: int  # pieces of the state that were received
    donors: int  # peers that they came from
    connect_seconds: float  # waiting to be let in
    sync_seconds: float
    digest: str


@dataclass(frozen=True, kw_only=True)
class Missed(Report):
    """This newcomer came when nobody was left who had the state."""

    kind = "missed"


@dataclass(frozen=True, kw_only=True)
class Admitted(Report):
    """This peer let newcomers in and shared the state with them."""

    kind = "admitted"
    step: int  # steps done
    world: int  # with those that came
    held_seconds: float  # letting them in and giving them the state
    tx_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Finished(Report):
    """All steps are done and the communicator is closed."""

    kind = "finished"
    step: int
    digest: str
    validation: float
    prompt: str
    sample: str  # what the model writes after the prompt


_KINDS: dict[str, type[Report]] = {
    kind.kind: kind for kind in (Prepared, Ready, Stepped, Recovered, Halted, Joined, Missed, Admitted, Finished)
}
