"""The orchestrator: starts the master and the peers, kills one, lets another one in, watches, and judges.

One event loop; a task per peer takes what it reports. What it learns is kept in ``Run``, which the displays and the verdict
read; nothing in ``Run`` waits or prints.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from pccl import MasterNode
from pccl.lab import reports
from pccl.lab.display import Display, count_text, size_text
from pccl.lab.processes import Child, Nursery

LIFE = "pccl.demo.worker:run"
STALL_LIMIT = 180.0  # seconds without any report; generous, since the cores may be busy with other work
TICK = 0.2  # seconds between looks at the clock
SMOOTHING = 0.1  # weight of the newest step in a peer's rate
FELL = 0.9  # the loss has fallen if the mean of the last steps is at most this share of that of the first


# ---- what peers and orchestrator tell each other; no torch here: the orchestrator has none ----


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


# ---- the run ----


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for, checked."""

    peers: int
    steps: int
    kill_step: int | None  # None: nobody is killed
    kill_peer: int
    join_step: int | None  # from which on a new peer is let in; None: nobody joins
    kill_at_join: str | None  # also killed while the new peer gets the state: "newcomer", "survivor" or nobody
    seed: int
    threads: int
    data: str | None
    out: Path

    @property
    def newcomer(self) -> int | None:
        """The number of the peer that joins."""
        return None if self.join_step is None else self.peers

    @property
    def killed_at_join(self) -> int | None:
        """The number of the peer that is killed while the new one gets the state."""
        if self.kill_at_join == "survivor":
            return next(index for index in range(self.peers) if self.kill_step is None or index != self.kill_peer)
        return self.newcomer if self.kill_at_join == "newcomer" else None


@dataclass(kw_only=True)
class Peer:
    """One peer as the orchestrator sees it."""

    index: int
    status: str = "starting"  # standing by, connecting, joining, training, halted, killed, finished, missed, failed
    step: int = 0
    loss: float | None = None
    world: int | None = None
    tokens_per_second: float = 0.0
    tx_bytes: int = 0
    rx_bytes: int = 0
    digest: str | None = None
    digest_step: int = 0
    finished: Finished | None = None
    stepped_at: float | None = None


@dataclass(kw_only=True)
class Kill:
    """The moment of the kill, and what became of it."""

    step: int
    at: float  # seconds of the monotonic clock
    recovered: dict[int, Recovered] = field(default_factory=dict)  # by peer


@dataclass(kw_only=True)
class Join:
    """How the new peer came in."""

    joined: Joined | None = None
    admitted: dict[int, Admitted] = field(default_factory=dict)  # by peer, of those that were there
    killed: int | None = None  # the peer that was killed meanwhile

    @property
    def held_seconds(self) -> float:
        """How long those that were there could not train."""
        return max((report.held_seconds for report in self.admitted.values()), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the verdict."""

    claim: str
    holds: bool
    detail: str


class Run:
    """All that is known about a run. ``take`` is the only way in."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.peers = [Peer(index=index) for index in range(options.peers + (options.newcomer is not None))]
        self.kill: Kill | None = None
        self.join = Join()
        self.parameters = 0
        self.validation_before: float | None = None
        self.losses: dict[int, dict[int, float]] = defaultdict(dict)  # by step, then peer
        self.digests: dict[int, dict[int, str]] = defaultdict(dict)  # likewise

    @property
    def began(self) -> bool:
        """All peers have been accepted, so that none waits for another to join."""
        return self.validation_before is not None

    def take(self, peer: Peer, report: Report, now: float) -> str | None:
        """Note a peer's report; returns a line for the user where it is news."""
        match report:
            case Prepared():
                peer.status = "standing by"
            case Ready():
                first = not self.began
                peer.status, peer.world, peer.stepped_at = "training", report.world, now
                self.parameters, self.validation_before = report.parameters, report.validation
                if first:
                    return (
                        f"{report.world} peers are connected; the model has {report.parameters:,} parameters, "
                        f"its validation loss is {report.validation:.3f}"
                    )
            case Stepped():
                self._take_step(peer, report, now)
            case Halted():
                peer.status = "halted"
            case Recovered():
                return self._recovery(peer, report)
            case Admitted():
                self.join.admitted[peer.index] = report
                peer.tx_bytes += report.tx_bytes
                peer.world, peer.stepped_at = report.world, now
                self.digests[report.step][peer.index] = report.digest
                return (
                    f"peer {peer.index}: {count_text(report.world, 'peer')} from step {report.step + 1} on; "
                    f"gave {size_text(report.tx_bytes)} of state, was held up for {report.held_seconds * 1e3:.0f} ms"
                )
            case Joined():
                self.join.joined = report
                peer.rx_bytes += report.rx_bytes
                peer.status, peer.step, peer.world, peer.stepped_at = "training", report.step, report.world, now
                self.digests[report.step][peer.index] = report.digest
                return f"peer {peer.index} {self._joining(report)}, after {report.connect_seconds * 1e3:.0f} ms of connecting"
            case Missed():
                peer.status = "missed"
                return f"peer {peer.index} came too late: nobody was left who had the state"
            case Finished():
                peer.finished, peer.digest, peer.digest_step = report, report.digest, report.step
                self.digests[report.step][peer.index] = report.digest
        return None

    def _take_step(self, peer: Peer, report: Stepped, now: float) -> None:
        peer.step, peer.loss, peer.world = report.step, report.loss, report.world
        peer.tx_bytes += report.tx_bytes
        peer.rx_bytes += report.rx_bytes
        self.losses[report.step][peer.index] = report.loss
        if report.digest is not None:
            peer.digest, peer.digest_step = report.digest, report.step
            self.digests[report.step][peer.index] = report.digest
        if peer.stepped_at is not None and now > peer.stepped_at:
            rate = report.tokens / (now - peer.stepped_at)
            share = SMOOTHING if peer.tokens_per_second else 1.0
            peer.tokens_per_second += share * (rate - peer.tokens_per_second)
        peer.stepped_at = now

    @staticmethod
    def _joining(report: Joined) -> str:
        return (
            f"joined for step {report.step + 1}: {size_text(report.rx_bytes)} in {count_text(report.leaves, 'piece')} from the "
            f"memory of {count_text(report.donors, 'peer')} in {report.sync_seconds * 1e3:.0f} ms"
        )

    def _recovery(self, peer: Peer, report: Recovered) -> str:
        ended = report.buckets - report.failed
        text = f"peer {peer.index}: {ended} of {report.buckets} reduces of step {report.step} ended, {report.failed} failed; "
        if report.world > 1:
            text += f"repeated with world size {report.world}"
        else:
            text += "it is alone and goes on with its own gradients"
        if self.kill is not None and self.kill.step == report.step:
            self.kill.recovered[peer.index] = report
            text += f", done {(report.at - self.kill.at) * 1e3:.0f} ms after the kill"
        return text

    def curve(self) -> list[tuple[int, float]]:
        """Loss by step, the mean over the peers that made the step."""
        return [(step, sum(losses.values()) / len(losses)) for step, losses in sorted(self.losses.items())]

    def survivors(self) -> list[Peer]:
        """Peers that were to reach the end."""
        return [peer for peer in self.peers if peer.status != "killed"]

    def checks(self) -> list[Check]:
        """The verdict, point by point."""
        checks = [self._check_end(), self._check_state(), self._check_loss()]
        if self.options.newcomer is not None:
            checks.insert(0, self._check_join(self.options.newcomer))
        if self.options.kill_step is not None:
            checks.insert(0, self._check_kill())
        return checks

    def _check_kill(self) -> Check:
        claim = "the kill happened, and the survivors went on without the lost peer"
        if self.kill is None:
            return Check(claim=claim, holds=False, detail="no peer was killed")
        worlds = [report.world for report in self.kill.recovered.values()]
        left = self.options.peers - 1
        holds = worlds == [left] * left
        slowest = max((report.at - self.kill.at for report in self.kill.recovered.values()), default=0.0)
        detail = f"{len(worlds)} of {left} survivors saw the loss in step {self.kill.step}, world sizes then {worlds}"
        return Check(claim=claim, holds=holds, detail=f"{detail}, recovered after {slowest * 1e3:.0f} ms")

    def _check_join(self, newcomer: int) -> Check:
        join = self.join
        there = [peer.index for peer in self.survivors() if peer.index != newcomer]
        admitted = sorted(set(join.admitted) & set(there))
        killed = "" if join.killed is None else f"peer {join.killed} was killed meanwhile; "
        held = f"{len(admitted)} of {len(there)} others let it in, held up for {join.held_seconds * 1e3:.0f} ms"
        if self.options.kill_at_join == "newcomer":
            claim = "the new peer died while it joined, and the others went on without it"
            holds = join.killed == newcomer and admitted == there and join.joined is None
            return Check(claim=claim, holds=holds, detail=killed + held)
        claim = "a new peer got the state of the others from their memory, and trained on"
        if join.joined is None:
            return Check(claim=claim, holds=False, detail=f"{killed}peer {newcomer} has not joined before the last step")
        same = len({self.digests[join.joined.step].get(index) for index in (newcomer, *admitted)}) == 1
        expected = self.options.killed_at_join == join.killed
        holds = same and expected and admitted == there and join.joined.rx_bytes > 0
        verdict = "the same hash on all then" if same else "the hashes differed then"
        detail = f"{killed}peer {newcomer} {self._joining(join.joined)}; {held}; {verdict}"
        return Check(claim=claim, holds=holds, detail=detail)

    def _check_end(self) -> Check:
        ended = [peer for peer in self.survivors() if peer.status == "finished" and peer.step == self.options.steps]
        worlds = [peer.world for peer in self.survivors()]
        holds = len(ended) == len(worlds) and worlds == [len(worlds)] * len(worlds)
        detail = f"{len(ended)} of {len(worlds)} at step {self.options.steps}, world sizes at the end {worlds}"
        return Check(claim="every peer that lives made all its steps", holds=holds, detail=detail)

    def _check_state(self) -> Check:
        claim = "all peers hold bit-identical state (weights, optimiser, random numbers, step)"
        final = [self.digests[self.options.steps].get(peer.index, "nothing") for peer in self.survivors()]
        split = [step for step, digests in sorted(self.digests.items()) if len(set(digests.values())) > 1]
        if split:
            found = ", ".join(f"peer {index} {digest}" for index, digest in sorted(self.digests[split[0]].items()))
            return Check(claim=claim, holds=False, detail=f"they differ from step {split[0]} on: {found}")
        holds = len(set(final)) == 1 and "nothing" not in final
        compared = f"compared at {len(self.digests)} steps"
        found = f"{count_text(len(final), 'peer')} with hash {final[0]}" if holds else f"hashes {', '.join(final)}"
        return Check(claim=claim, holds=holds, detail=f"{compared}; at the end {found}")

    def _check_loss(self) -> Check:
        claim = "the loss fell"
        losses = [loss for _, loss in self.curve()]
        few = min(20, max(1, len(losses) // 5))
        if len(losses) < 2:
            return Check(claim=claim, holds=False, detail="too few steps were made")
        first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
        detail = f"mean of the first {few} steps {first:.3f}, of the last {few} {last:.3f}"
        ended = [peer.finished.validation for peer in self.survivors() if peer.finished is not None]
        if self.validation_before is not None and ended:
            detail += f"; on held-out text {self.validation_before:.3f}, then {ended[0]:.3f}"
        return Check(claim=claim, holds=last <= FELL * first, detail=detail)


class BrokenRunError(Exception):
    """The run cannot go on; the message says why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PeerProcess:
    """A peer's process and its log file."""

    peer: Peer
    child: Child
    log: Path

    def log_tail(self, lines: int = 12) -> str:
        """What the process printed last."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Conductor:
    """Starts everything, lets the run take its course, and leaves no process behind, whatever happens."""

    def __init__(self, run: Run, display: Display[Run]) -> None:
        self._run, self._options, self._display = run, run.options, display
        self._processes: list[PeerProcess] = []
        self._heard = time.monotonic()

    async def conduct(self) -> None:
        """The whole run. BrokenRunError: waiting is in vain."""
        with MasterNode("127.0.0.1:0") as master:
            async with Nursery([LIFE], self._options.out) as nursery:
                for peer in self._run.peers:
                    self._processes.append(await self._start(nursery, peer, f"127.0.0.1:{master.port}"))
                pids = ", ".join(str(process.child.pid) for process in self._processes)
                step = self._options.join_step
                spare = "" if step is None else f"; the last one stands by, to join from step {step} on"
                self._display.say(f"the master listens on 127.0.0.1:{master.port}; the peers are processes {pids}{spare}")
                async with asyncio.TaskGroup() as group:
                    lives = [group.create_task(self._listen(process)) for process in self._processes]
                    while not all(life.done() for life in lives):
                        await asyncio.wait(lives, timeout=TICK)
                        self._display.update(self._run)
                        self._check_alive()

    async def _start(self, nursery: Nursery, peer: Peer, master: str) -> PeerProcess:
        options = self._options
        newcomer = peer.index == options.newcomer
        replaces = newcomer and options.kill_step is not None  # and goes on with the text of the one that was killed
        task = Task(
            index=peer.index,
            peers=options.peers,
            newcomer=newcomer,
            shard=options.kill_peer if replaces else peer.index,
            shards=options.peers + (options.newcomer is not None and options.kill_step is None),
            master=master,
            steps=options.steps,
            seed=options.seed,
            threads=options.threads,
            data=options.data,
            halt_in_step=options.kill_step if peer.index == options.kill_peer else None,
            halt_at_join=peer.index == options.killed_at_join,
        )
        log = options.out / f"peer-{peer.index}.log"
        log.unlink(missing_ok=True)
        return PeerProcess(peer=peer, child=await nursery.start(LIFE, task.to_fields(), log), log=log)

    async def _listen(self, process: PeerProcess) -> None:
        """Takes what a peer reports, until it has ended."""
        while line := await process.child.line():
            self._heard = now = time.monotonic()
            report = Report.from_line(line)
            news = self._run.take(process.peer, report, now)
            if isinstance(report, Halted):
                news = self._kill(process, report)
            if news is not None:
                self._display.say(news)
            self._let_go()
            self._display.update(self._run)
        self._note_end(process, await process.child.status)
        self._let_go()

    def _let_go(self) -> None:
        """Lets peers connect when it is their time: all that start together once all stand by, so none is late for its part."""
        waiting = [process for process in self._processes if process.peer.status == "standing by"]
        if len(waiting) == len(self._processes):
            for process in waiting[: self._options.peers]:
                process.child.order({"connect": True})
                process.peer.status = "connecting"
        if self._options.join_step is None or waiting != self._processes[-1:]:
            return
        spare, others = self._processes[-1], self._run.peers[:-1]
        if max(peer.step for peer in others) >= self._options.join_step - 1 and any(peer.status == "training" for peer in others):
            spare.child.order({"connect": True})
            spare.peer.status = "joining"
            self._display.say(f"peer {spare.peer.index} connects")
        elif all(peer.status in ("finished", "failed", "killed") for peer in others):
            spare.child.order({"connect": False})
            spare.peer.status = "missed"

    def _check_alive(self) -> None:
        statuses = [peer.status for peer in self._run.peers]
        if "failed" in statuses and not self._run.began:
            raise BrokenRunError(f"peer {statuses.index('failed')} ended before the training began")
        if time.monotonic() - self._heard > STALL_LIMIT:
            raise BrokenRunError(f"no peer has reported anything for {STALL_LIMIT:.0f} s")

    def _kill(self, process: PeerProcess, report: Halted) -> str:
        index = process.peer.index
        if index == self._options.killed_at_join:
            self._run.join.killed = index
        elif report.step is not None:
            self._run.kill = Kill(step=report.step, at=time.monotonic())
        process.child.signal(signal.SIGKILL)
        process.peer.status = "killed"
        step = "" if report.step is None else f"in step {report.step}, "
        return f"peer {index} killed with SIGKILL {step}{report.place}"

    def _note_end(self, process: PeerProcess, status: int) -> None:
        if process.peer.status in ("killed", "missed"):
            return
        if status == 0 and process.peer.finished is not None:
            process.peer.status = "finished"
            return
        process.peer.status = "failed"
        self._display.say(
            f"peer {process.peer.index} ended with status {status}; the end of {process.log}:\n{process.log_tail()}"
        )
