"""What the orchestrator tells a peer's process, and what that process tells back. No torch here: the orchestrator has none."""

from __future__ import annotations

from dataclasses import dataclass

from pccl.lab import reports


@dataclass(frozen=True, kw_only=True)
class Task(reports.Record):
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
    data: str | None = None  # None: the standard library's text
    halt_in_step: int | None = None  # stand still in the middle of this step until killed; None: never
    halt_at_join: bool = False  # stand still while the others wait to hand the state over, until killed
    buckets: int = 4  # parts of the gradient, each reduced under its own tag
    digest_every: int = 10  # steps


class Report(reports.Report):
    """What a peer tells."""


@dataclass(frozen=True, kw_only=True)
class Prepared(Report):
    """Text and model are made; this peer connects when it reads a line from its standard input."""


@dataclass(frozen=True, kw_only=True)
class Ready(Report):
    """All peers are accepted and the first step begins."""

    world: int
    parameters: int
    validation: float


@dataclass(frozen=True, kw_only=True)
class Stepped(Report):
    """A step is done."""

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

    step: int
    failed: int  # reduces that failed
    buckets: int  # reduces of a step
    world: int  # that is left
    at: float  # when the gradients were averaged; seconds of the monotonic clock, one for all processes


@dataclass(frozen=True, kw_only=True)
class Halted(Report):
    """This peer stands still where a death hurts most, and waits to be killed."""

    step: int | None  # None: the peer had none yet
    place: str  # in words


@dataclass(frozen=True, kw_only=True)
class Joined(Report):
    """This newcomer holds the state of the others, and goes on where they are."""

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


@dataclass(frozen=True, kw_only=True)
class Admitted(Report):
    """This peer let newcomers in and shared the state with them."""

    step: int  # steps done
    world: int  # with those that came
    held_seconds: float  # letting them in and giving them the state
    tx_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Finished(Report):
    """All steps are done and the communicator is closed."""

    step: int
    digest: str
    validation: float
    prompt: str
    sample: str  # what the model writes after the prompt
