"""Takes snapshots: each member copies its part of the state, and spreads its redundancy beside the training.

**Invariant.** A member drops a snapshot only when it knows that all members have stored their pieces of a newer one. So whatever
is lost, up to what the redundancy bears, the survivors have all pieces of one snapshot. Members know it by the end of one
all-gather, which is the same on all survivors. A piece is shown to others, and given to the holder, when it is complete.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import torch

from pccl._core.errors import PCCLError, PeerLostError, UsageError
from pccl._host.holder import HolderError, TakenError
from pccl.state._local.tree import encode
from pccl.state._snapshots.boxes import image_offsets, shards_from, shards_tree, text_of
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.images import Memory, Sum, hash_image, write_image
from pccl.state._snapshots.kept import Kept, host_name
from pccl.state._snapshots.snapshot import (
    ERA_MAX,
    ID_MAX,
    SHARED_FAILURES,
    Contribution,
    Job,
    Layout,
    PieceName,
    RefusedError,
    Report,
    Snapshot,
    SnapshotError,
    SpoiledError,
)
from pccl.state._snapshots.talk import GarbledError, Talk, understood
from pccl.state._snapshots.transfer import Transfer

if TYPE_CHECKING:
    from pccl._peer.communicator import Communicator

_log = logging.getLogger("pccl.state")

_keepers: weakref.WeakKeyDictionary[Any, weakref.WeakValueDictionary[str, Keeper]] = weakref.WeakKeyDictionary()
"""By communicator and topic: the last Keeper. The messages of two that have one topic would be taken for each other's."""

_registering = threading.RLock()
"""Held while a Keeper takes its topic. No finalizer may take it: the garbage collector may run inside any other lock."""

_jobs: weakref.WeakSet[Job] = weakref.WeakSet()

FAILURES_MOST = 3
"""Snapshots that fail in a row, each for a reason that may pass."""

PASSING = (MemoryError, OSError, RuntimeError)
"""Reasons why a process cannot copy its part that may pass: memory, the system, an accelerator. All others are the program's."""

REASON_BYTES = 2000
"""Of a failure that others are told of."""

EXIT_SECONDS = 10.0
"""For the end of a snapshot whose communicator was closed."""


@atexit.register
def _end_jobs() -> None:
    """Ends snapshots under way before Python stops their threads: one that it stops inside of torch aborts the process."""
    under_way = [job for job in _jobs if not job.ended.is_set() or job.thread.is_alive()]
    for job in under_way:
        job.talk.abandon()
    for job in under_way:
        if job.ended.wait(EXIT_SECONDS) and job.thread.is_alive():
            job.thread.join(EXIT_SECONDS)


class Keeper:
    """The snapshots of one process. Its methods are called by one thread, and do their work in another one."""

    def __init__(
        self,
        comm: Communicator,
        config: Snapshots,
        name: str,
        *,
        topic: str = "snapshot",
        timeout: float | None = None,
        told: bool = False,
    ) -> None:
        """`topic`: the same on all members. `told`: the program hears of refusals. ValueError: another open one has the topic."""
        self._has_topic = True
        with _registering:
            others = _keepers.setdefault(comm, weakref.WeakValueDictionary())
            other = others.get(topic)
            if other is not None and other._has_topic:
                raise ValueError(
                    "this process takes snapshots for another Elastic already: give all models to one Elastic, as a "
                    "torch.nn.ModuleList with a list of their optimizers, or call close() of the other one before"
                )
            others[topic] = self
        self._comm = comm
        self._config = config
        self._topic = topic
        self._timeout = timeout
        self._told = told
        self.kept = Kept(config, name)
        self.era = 0
        self.report = Report()
        self.broken: BaseException | None = None
        """For which this process has left the run: the others would have waited for messages that it could not send."""
        self._layout: tuple[tuple[UUID, ...], Layout] | None = None
        self.job: Job | None = None
        """The snapshot under way, or one that has ended and that `settle` has not reported."""
        self.missing: dict[str, bool] = {}
        """Whether the last snapshot has failed, whether the holder lacks it, and whether a member has left before it."""
        self._failures = 0
        """Snapshots in a row that have failed, or whose pieces the holder has not got."""
        self.trouble: Exception | None = None
        """For which the next snapshot would fail, too, or the last one of FAILURES_MOST failures."""

    # ---- the program's side ----

    def take(self, given: Contribution) -> Job:
        """Begins a snapshot and returns. All members call it.

        The tensors must not change until `fence` has returned. A snapshot that is under way is waited for.
        """
        self.settle()
        talk = Talk(self._comm, given.members, given.own, self._topic, self._timeout, background=True)
        self.report = Report(step=given.step)
        job = Job(**vars(given), era=self.era, talk=talk, report=self.report)
        job.thread = threading.Thread(target=self._run, args=(job, _pending(job.tensors)), name="pccl snapshot", daemon=True)
        try:
            self.job = job  # `start` may raise the exception of a signal although the thread runs
            _jobs.add(job)
            job.thread.start()
        except BaseException:  # such a signal, or there are as many threads as there may be
            if job.claim():  # the thread has not begun, and does nothing if it still begins
                self.job = None
                job.copied.set()
                job.ended.set()
                talk.abandon()  # the others wait for this member
            raise
        return job

    def fence(self) -> None:
        """Returns when the tensors of the snapshot under way, if any, are copied."""
        if self.job is not None:
            self.job.copied.wait()

    def settle(self) -> bool:
        """Waits for the end of a snapshot under way. Whether the last one is complete. What went wrong is logged once."""
        job = self.job
        if job is not None:
            job.ended.wait()
        self.job = None
        if job is not None and not isinstance(job.failure, (PeerLostError, UsageError)):
            self._count(job)
        return self.report.complete

    def _count(self, job: Job) -> None:
        if job.failure is not None:
            self.kept.warn(f"no snapshot of step {job.step} was taken, the one before it stays: {job.failure}")
        self.missing |= {"snapshots": job.failure is not None, "holder": job.unkept is not None}
        if job.failure is None:
            self.missing["drain"] = False  # nothing is needed of a member that has left
        found = job.failure or job.unkept
        self._failures = 0 if found is None else self._failures + 1
        lasts = isinstance(found, (RefusedError, TakenError)) and not self._told
        lasts = lasts or self._failures >= FAILURES_MOST
        self.trouble = found if lasts and isinstance(found, Exception) else None

    def verdict(self, step: int) -> Exception | None:
        """Why snapshots fail for good; None: they do not, or `on_failure` was told. Each failure once.

        `step`: at which the program is.
        """
        if self.job is not None and self.job.ended.is_set():
            self.settle()
        found, self.trouble = self.trouble, None
        if found is None or isinstance(found, (RefusedError, TakenError)) or self._config.on_failure is None:
            return found
        try:
            self._config.on_failure(found, step - (self.protected_step or 0))
        except Exception as error:  # told to all: others wait for this member
            return error
        return None

    @property
    def protected_step(self) -> int | None:
        """The step of the newest snapshot that is complete, and beside this process. Any thread may ask."""
        kept = [one for one in list(self.kept.snapshots) if self._config.holder or len(one.layout.maps) > 1]
        return max((one.step for one in kept if one.complete and not one.bare), default=None)

    def close(self) -> None:
        """Drops all that this process has kept, also at the holder."""
        with contextlib.suppress(PCCLError):
            self.settle()
        self.kept.close()
        self._give_topic_back()

    def release(self) -> None:
        """Frees the memory here, as `Kept.release` does."""
        self._give_topic_back()
        self.kept.release()

    def _give_topic_back(self) -> None:
        """Lets another Keeper have the topic. Takes no lock and reads no table, since a finalizer calls it."""
        self._has_topic = False

    # ---- the thread ----

    def _run(self, job: Job, pending: tuple[torch.Event, int] | None) -> None:
        if not job.claim():
            return
        begun = time.monotonic()
        try:
            if pending is not None:
                event, device = pending
                torch.accelerator.set_device_index(device)  # of this thread
                event.wait()
            self._take(job, begun)
        except BaseException as error:  # told by `settle`
            job.failure = error
            job.report.why = str(error) or type(error).__name__
            is_closed = isinstance(error, UsageError) and self._comm._handle.closed  # by the program
            if not is_closed and not isinstance(error, SHARED_FAILURES):
                self.broken = error
                _log.error("%s", f"this process leaves the run, since its snapshot failed: {job.report.why}")
                job.talk.abandon()
        finally:
            job.copied.set()
            job.report.seconds = time.monotonic() - begun
            job.tensors = {}
            job.ended.set()

    def _take(self, job: Job, begun: float) -> None:
        problem: Exception | None = None
        pieces: dict[PieceName, Memory] = {}
        try:
            if job.problem is not None:
                raise job.problem
            pieces = self._copy(job)
        except Exception as error:  # told to all below
            problem = error
        job.report.copy_seconds = time.monotonic() - begun
        job.copied.set()
        layout, number, base = self._agree(job, self._base(job.members), problem)
        # From here on each member takes part in all messages, whatever fails: others wait for them.
        snapshot = Snapshot(number, job.era, job.step, layout, pieces)
        self.kept.snapshots.append(snapshot)
        alike: list[Sum] = []
        try:
            image = pieces[PieceName("image", job.own)].bytes
            snapshot.sums[job.own] = hash_image(job.shards, image, layout.first[job.own])
            alike = [hash_image(job.shards, image, layout.replicas[one]) for one in layout.replicas_of[job.own]]
        except Exception as error:
            problem = error
        try:
            Transfer(job, snapshot, base, self.kept.memory, problem).run()
            self._keep_at_holder(job, snapshot)
        except PeerLostError:
            raise
        except Exception as error:
            problem = problem or error
        own_sum = snapshot.sums.get(job.own, Sum(0, 0)).signed()
        try:
            rows = job.talk.gather([_status(problem), *own_sum, *_flat(alike, max(map(len, layout.replicas_of)))])
        except UsageError:  # this process has left the run
            raise problem or RuntimeError("the communicator was closed") from problem
        self._require_success(job, rows, 0, problem, "store")
        self._require_alike(job, snapshot, [row[3:] for row in rows])
        for member, row in enumerate(rows):
            snapshot.sums[member] = Sum.of_signed(*row[1:3])
        snapshot.complete = True
        job.report.complete = True
        self.kept.keep([snapshot])
        self.kept.clean_holder(lambda info: (info["era"], info["step"]) < snapshot.order)

    def _require_success(
        self, job: Job, rows: Sequence[Sequence[int]], column: int, problem: Exception | None, what: str
    ) -> None:
        """SnapshotError, on all alike, has the reason of the first member with the gravest status: it stands in `column`."""
        failed = max(range(len(rows)), key=lambda member: rows[member][column])
        if rows[failed][column]:
            own = "" if problem is None else f"{type(problem).__name__}: {problem}"
            reason = job.talk.gather_bytes(own.encode()[:REASON_BYTES])[failed].decode(errors="replace")
            kind = RefusedError if rows[failed][column] == _REFUSED else SnapshotError
            raise kind(f"member {failed} could not {what} its part: {reason}") from problem

    def _require_alike(self, job: Job, snapshot: Snapshot, rows: Sequence[Sequence[int]]) -> None:
        """SnapshotError, on all alike, names the first tensor that several members have as the same part, with other content.

        `rows[member]`: the hashes of its parts that others have too, in the order of `replicas_of`.
        """
        layout = snapshot.layout
        for members, names in layout.replicas.items():
            at = [2 * layout.replicas_of[member].index(members) for member in members]
            if len({tuple(rows[member][begin : begin + 2]) for member, begin in zip(members, at, strict=True)}) == 1:
                continue
            self.kept.snapshots.remove(snapshot)
            own: list[Sum] = []
            if job.own in members:
                image = snapshot.pieces[PieceName("image", job.own)].bytes
                own = [hash_image(job.shards, image, [name]) for name in names]
            self.kept.forget(snapshot)
            told = job.talk.gather(_flat(own, len(names)))
            for number, name in enumerate(names):
                contents = {member: tuple(told[member][2 * number : 2 * number + 2]) for member in members}
                others = [member for member in members if contents[member] != contents[members[0]]]
                if others:
                    raise RefusedError(
                        f"tensor {name} has another content at member {', '.join(map(str, others))} than at member {members[0]}, "
                        "and both have all of it, or the same part; make it the same, such as by a broadcast from one of them"
                    )

    def _copy(self, job: Job) -> dict[PieceName, Memory]:
        _, size = image_offsets(job.shards)
        job.report.state_bytes = size
        image = self.kept.memory(size)
        write_image(job.tensors, job.shards, image.bytes)
        return {PieceName("image", job.own): image, PieceName("values", job.own): Memory.of(job.values)}

    def _base(self, members: tuple[UUID, ...]) -> Snapshot | None:
        """The complete snapshot that differences are told against; what was not completed since is dropped."""
        complete = [one for one in self.kept.snapshots if one.complete and not one.bare]
        bare = [one for one in self.kept.snapshots if one.bare]
        self.kept.keep([*complete[-1:], *bare[-1:]] or self.kept.snapshots[-1:])
        if not complete or self._layout is None or self._layout[0] != members:
            return None
        return complete[-1] if complete[-1].layout is self._layout[1] else None

    def _agree(self, job: Job, base: Snapshot | None, problem: Exception | None) -> tuple[Layout, int, Snapshot | None]:
        """The layout of the members, the id of the snapshot, and its base. SnapshotError on all alike."""
        known = self._layout is not None and self._layout[0] == job.members and self._layout[1].maps[job.own] == job.shards
        numbers = [
            job.step,
            _status(problem),
            self._config.redundancy.data << 16 | self._config.redundancy.parity,
            int(known),
            base.id if base is not None and known else 0,
            int.from_bytes(os.urandom(7), "little") or 1,
            self.era,
        ]
        rows = job.talk.gather(numbers)
        for member, row in enumerate(rows):
            if not 0 <= row[6] < ERA_MAX or not 0 < row[5] <= ID_MAX:
                raise GarbledError(f"member {member} tells of era {row[6]} and of snapshot {row[5]}")
        job.era = self.era = max(row[6] for row in rows)
        self._require_success(job, rows, 1, problem, "copy")
        if len({row[0] for row in rows}) > 1:
            steps = ", ".join(f"{row[0]} at member {member}" for member, row in enumerate(rows))
            raise RefusedError(f"members are at different steps: {steps}; all must take a snapshot at the same step")
        if len({row[2] for row in rows}) > 1:
            wanted = ", ".join(f"({row[2] >> 16}, {row[2] & 0xFFFF}) at member {member}" for member, row in enumerate(rows))
            raise RefusedError(f"members ask for different codes: {wanted}; give all of them the same Snapshots")
        if not all(row[3] for row in rows):
            self._layout = job.members, self._exchange(job)
        assert self._layout is not None
        same_base = rows[0][4] != 0 and len({row[4] for row in rows}) == 1
        return self._layout[1], rows[0][5], base if same_base else None

    def _exchange(self, job: Job) -> Layout:
        told = job.talk.gather_bytes(bytes(encode({"host": host_name(), "map": shards_tree(job.shards)})))
        try:
            parts = understood(told, lambda tree: (text_of(tree["host"]), shards_from(tree["map"])), "shard map")
            return Layout([host for host, _ in parts], [one for _, one in parts], self._config.redundancy)
        except ValueError as error:
            raise RefusedError(str(error)) from error  # on all alike

    def _keep_at_holder(self, job: Job, snapshot: Snapshot) -> None:
        """Gives the pieces to the holder. Without one they end with this process, and copies at other hosts serve."""
        try:
            self.kept.store(snapshot)
        except HolderError as error:
            job.unkept = error
            self.kept.warn(f"{error}; what this process keeps ends with it")


def _status(problem: Exception | None) -> int:
    """The graver, the higher: what follows from the failure of another member comes before its cause."""
    if problem is None:
        return 0
    return 1 if isinstance(problem, SpoiledError) else 2 if isinstance(problem, PASSING) else _REFUSED


_REFUSED = 3


def _flat(sums: Sequence[Sum], count: int) -> list[int]:
    """As numbers, filled up to those of `count` sums."""
    numbers = [number for one in sums for number in one.signed()]
    return numbers + [0] * (2 * count - len(numbers))


def _pending(tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Event, int] | None:
    """What this thread has asked an accelerator to do, for another one to wait for, and its index; None: all is on the CPU."""
    device = next((tensor.device for tensor in tensors.values() if not tensor.is_cpu), None)
    if device is None:
        return None
    return torch.accelerator.current_stream(device).record_event(), device.index or 0
