"""The snapshots of a communicator whose members say themselves what each of them has."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

import torch

from pccl._core.calls import Deadline
from pccl._core.errors import PCCLError, PCCLTimeoutError, Result, StateLostError
from pccl._host.holder import HolderError
from pccl._ops.journal import Journal
from pccl.state._local.tree import encode
from pccl.state._snapshots.boxes import (
    Box,
    ShardMap,
    Slice,
    list_of,
    part_of,
    shards_from,
    shards_tree,
    text_of,
    uncovered,
    whole_number,
)
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.images import Memory
from pccl.state._snapshots.keeper import EXIT_SECONDS, Keeper
from pccl.state._snapshots.restore import DamagedError, Held, Source, carry_out, choose, plan, verify
from pccl.state._snapshots.snapshot import ERA_MAX, ID_MAX, PLACE_MAX, Contribution, Job, Layout, PieceName
from pccl.state._snapshots.stock import Stock, layouts_from
from pccl.state._snapshots.talk import GarbledError, Talk, understood

if TYPE_CHECKING:
    from pccl._peer.communicator import Communicator

_log = logging.getLogger("pccl.state")

OPENINGS = 5
"""Attempts to open the pieces of a snapshot while holders end."""


PAUSE_SECONDS = 0.005
"""Before members ask each other again whether any of them takes a snapshot; doubled up to PAUSE_MOST_SECONDS."""

PAUSE_MOST_SECONDS = 0.1


class Vault:
    """The snapshots of one kind that a process takes on a communicator. Any thread may call its methods.

    A snapshot and a restore exclude each other. Threads of different members may begin them in different orders, so a member that
    waits for its own snapshot keeps no other member waiting: see `_reading`.
    """

    def __init__(self, comm: Communicator, snapshots: Snapshots, name: str, topic: str, timeout: float | None = None) -> None:
        self.snapshots = snapshots
        self._comm = comm
        self._topic = topic
        self._changed = threading.Condition()  # never held while others are waited for
        self._restoring = False
        self._begun = 0  # snapshots
        self.keeper = Keeper(comm, snapshots, f"{name} {topic}", topic=topic, timeout=timeout, told=True)
        # A restarted run that restores nothing counts as newer than what its predecessor has left.
        self.keeper.era = 1 + max((piece.era for piece in Stock(self.keeper.kept).held), default=-1)
        self.taking, self.restoring = Journal(), Journal()
        """Calls of this process that were cut short."""
        self.damaged: set[int] = set()
        """Ids of snapshots that are not to be restored."""

    def take(self, given: Contribution) -> None:
        """Takes a snapshot on all members. Raises the problem, if there is one, and then SnapshotError on the others.

        SnapshotError, PeerLostError: it is not complete.
        """
        job = self.begin(given)
        job.ended.wait()
        if given.problem is not None:
            raise given.problem
        if job.failure is not None:
            raise job.failure

    def begin(self, given: Contribution) -> Job:
        """Begins a snapshot, after the one under way. See Keeper.take."""
        while True:
            self.settle()
            with self._changed:
                self._changed.wait_for(lambda: not self._restoring)
                if not self._busy():
                    self._begun += 1
                    return self.keeper.take(given)

    def settle(self, timeout: float | None = None) -> bool:
        """Waits for the end of a snapshot under way. Whether the last one is complete. PCCLTimeoutError: it goes on."""
        job = self.keeper.job
        if job is not None and not job.ended.wait(timeout):
            raise PCCLTimeoutError(Result.TIMED_OUT, "pcclSnapshot", "a snapshot is under way; repeat the call to wait on")
        with self._changed:
            return self.keeper.report.complete if self._busy() else self.keeper.settle()

    def drop(self) -> None:
        self.settle()
        with self._changed:
            self._changed.wait_for(lambda: not self._restoring)
            self.keeper.close()

    def works_in(self, thread: threading.Thread) -> bool:
        """Whether this thread takes a snapshot of it."""
        job = self.keeper.job
        return job is not None and job.thread is thread

    def release(self) -> bool:
        """Frees the memory here, and leaves what the holder keeps. Whether it did: it does not during a restore.

        The communicator is closed, so that a snapshot under way ends.
        """
        job = self.keeper.job
        if job is not None:
            job.ended.wait(EXIT_SECONDS)
        with self._changed:
            if self._restoring or self._busy():
                return False
            self.keeper.settle()
            self.keeper.release()
            return True

    def _busy(self) -> bool:
        job = self.keeper.job
        return job is not None and not job.ended.is_set()

    @contextlib.contextmanager
    def _reading(self, talk: Talk, timeout: float | None) -> Iterator[None]:
        """Keeps snapshots of all members out. All call it. PCCLTimeoutError: one goes on."""
        deadline = Deadline(timeout)
        pause = PAUSE_SECONDS
        while True:
            with self._changed:
                free = not self._busy() and not self._restoring
                self._restoring = self._restoring or free
            try:
                if all(row[0] for row in talk.gather([int(free)])):
                    with self._changed:
                        self.keeper.settle()
                    yield
                    return
            finally:
                if free:
                    with self._changed:
                        self._restoring = False
                        self._changed.notify_all()
            # Another member's snapshot may need this one, so nobody keeps snapshots out meanwhile.
            if deadline.passed():
                raise PCCLTimeoutError(Result.TIMED_OUT, "pcclRestore", "a member's snapshot is under way; call again")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MOST_SECONDS)

    def open(self, members: Sequence[UUID], own: int, timeout: float | None = None) -> Opened | None:
        """The newest snapshot that the members can restore, the same for all; all of them call it. None: nobody holds one.

        StateLostError on all: more was lost than the redundancy bears. PeerLostError: a member was lost.
        """
        talk = Talk(self._comm, members, own, f"{self._topic} restore", timeout)
        with self._reading(talk, timeout):
            return self._open(talk, timeout)

    def _open(self, talk: Talk, timeout: float | None) -> Opened | None:
        for _ in range(OPENINGS):
            stock = Stock(self.keeper.kept)
            tree = {"era": self.keeper.era, "held": stock.infos, "layouts": stock.layouts, "damaged": sorted(self.damaged)}
            told = understood(talk.gather_bytes(bytes(encode(tree))), _Inventory.of, "inventory")
            held = [one.held for one in told]
            self.damaged.update(*(one.damaged for one in told))
            eras = [one.era for one in told] + [piece.era for pieces in held for piece in pieces]
            self.keeper.era = 1 + max(eras)
            if not any(held):
                return None
            source = choose(held, stock.exchange_layouts(talk, [one.layouts for one in told]), self.damaged)
            pieces: dict[PieceName, Memory] | None = None
            try:
                pieces = stock.pieces(source.id)
            except (HolderError, KeyError, MemoryError) as error:
                _log.error("%s", f"snapshots: {error}")
                self.keeper.kept.abandon()
            if all(row[0] for row in talk.gather([int(pieces is not None)])):
                assert pieces is not None
                return Opened(self, talk, source, pieces, timeout)
        raise StateLostError(f"the state is lost: {OPENINGS} attempts to open the pieces of a snapshot have failed; see the log")


class _Inventory(NamedTuple):
    """What a member tells of all that it has."""

    era: int
    held: list[Held]
    layouts: list[str]
    damaged: list[int]

    @classmethod
    def of(cls, tree: Any) -> Self:
        held = [Held.of(one) for one in list_of(tree["held"], PLACE_MAX)]
        damaged = [whole_number(one, ID_MAX) for one in list_of(tree["damaged"], PLACE_MAX)]
        return cls(whole_number(tree["era"], ERA_MAX), held, layouts_from(tree["layouts"]), damaged)


class _Asked(NamedTuple):
    """Which tensors a member wants, or why it has failed."""

    shards: ShardMap
    problem: str

    @classmethod
    def of(cls, tree: Any) -> Self:
        return cls(shards_from(tree["shards"]), text_of(tree["problem"]))


class Opened:
    """A snapshot that is about to be restored. All members make the same calls."""

    def __init__(
        self, vault: Vault, talk: Talk, source: Source, pieces: Mapping[PieceName, Memory], timeout: float | None
    ) -> None:
        self._vault, self._talk, self._source, self._pieces, self._timeout = vault, talk, source, pieces, timeout
        self._begun = vault._begun
        self.step = source.order[1]
        self.slices: ShardMap = {name: one for shards in source.layout.maps for name, one in shards.items()}
        """Every tensor of the snapshot, with some member's part of it."""

    def writers(self, members: int) -> dict[str, int]:
        """For each tensor that belongs to one member only, a member that is to read it: one that has it, if there is one."""
        return {
            name: self._source.images[slot][0] if slot in self._source.images else number % members
            for slot, shards in enumerate(self._source.layout.maps)
            for number, name in enumerate(sorted(shards))
        }

    @property
    def values_from(self) -> int:
        """The member that sends `values`."""
        return self._source.values[min(self._source.values)][0]

    def values(self) -> bytes:
        """What the first member whose values are there told beside its tensors."""
        slot, root = min(self._source.values), self.values_from
        with self._vault._reading(self._talk, self._timeout):
            self._require_current()
            own = self._pieces[PieceName("values", slot)].bytes.numpy().tobytes() if root == self._talk.own else None
            return self._talk.broadcast(root, own)

    def _require_current(self) -> None:
        """RuntimeError on all: the memory of the pieces may have other content since."""
        if any(row[0] for row in self._talk.gather([int(self._begun != self._vault._begun)])):
            raise RuntimeError("restore: another snapshot was taken since this one was opened; call it again")

    def fill(self, targets: Mapping[str, torch.Tensor], shards: ShardMap, problem: Exception | None = None) -> None:
        """Fills this member's tensors, of the shapes of `shards`.

        `problem` is raised, if given, and ValueError on the others; so it is on all if targets do not fit the snapshot, and
        nothing is changed then. RuntimeError on all: a snapshot was taken since it was opened. DamagedError on all,
        PeerLostError: the tensors have any content.
        """
        with self._vault._reading(self._talk, self._timeout):
            self._require_current()
            self._fill(targets, shards, problem)

    def _fill(self, targets: Mapping[str, torch.Tensor], shards: ShardMap, problem: Exception | None) -> None:
        tree = {"shards": shards_tree(shards), "problem": "" if problem is None else str(problem) or type(problem).__name__}
        told = understood(self._talk.gather_bytes(bytes(encode(tree))), _Asked.of, "shard map")
        if problem is not None:
            raise problem
        for member, one in enumerate(told):
            if one.problem:
                raise ValueError(f"restore: member {member} has failed: {one.problem}")
        maps = [one.shards for one in told]
        _require_fit(self._source.layout, self.slices, maps)
        try:
            work = plan(self._source, maps)
        except LookupError as error:
            raise ValueError(f"restore: the snapshot has no member's part for all of tensor {error.args[0]}") from None
        try:
            carry_out(work, self._source, self._talk, lambda name: self._pieces[name].bytes, targets, shards)
            verify(self._source, self._talk, targets, maps)
        except DamagedError:
            self._vault.damaged.add(self._source.id)
            raise
        except (PCCLError, GarbledError):
            raise
        except BaseException:
            self._talk.abandon()  # the others must not wait for this process
            raise


def _require_fit(layout: Layout, known: ShardMap, maps: Sequence[ShardMap]) -> None:
    """ValueError: a target is not in the snapshot, or of another shape or type, or parts of tensors are in no target."""
    for member, shards in enumerate(maps):
        for name, one in shards.items():
            if name not in known:
                text = f"has no tensor {_spelled(name)}, which member {member} asks for"
                parts = sorted({own[0] for other in known if (own := part_of(other))})
                raise ValueError(f"restore: the snapshot {text}" + (f"; its parts are {', '.join(parts)}" if parts else ""))
            if one[:3] != known[name][:3]:
                texts = [f"{part.dtype} of shape {part.whole}" for part in (known[name], one)]
                raise ValueError(
                    f"restore: tensor {_spelled(name)} is {texts[0]} in the snapshot, and {texts[1]} at member {member}"
                )
    for name, one in known.items():
        if part_of(name) is None:
            whole = Box((0,) * len(one.whole), one.whole)
            if whole.numel and uncovered(whole, (shards[name].box for shards in maps if name in shards)):
                raise ValueError(f"restore: no member asks for some elements of tensor {name}; members must ask for all together")


def _spelled(name: str) -> str:
    own = part_of(name)
    return name if own is None else f"{own[1]} of part {own[0]}"


def whole_slice(tensor: torch.Tensor) -> Slice:
    """Of a tensor that one member has whole."""
    shape = tuple(tensor.shape)
    return Slice(str(tensor.dtype).removeprefix("torch."), tensor.element_size(), shape, Box((0,) * len(shape), shape))


_making = threading.RLock()
"""Held while a vault is looked up and made. No finalizer may take it: the garbage collector may run inside any other lock."""


def vault_of(comm: Any, snapshots: Snapshots | None, topic: str, timeout: float | None = None) -> Vault:
    """Returns the vault of a communicator for a topic, and makes it at the first call. Any thread may call it.

    ValueError: the vault was made for other snapshots.
    """
    with _making:
        found: Vault | None = comm._vaults.get(topic)
        if found is None:
            wanted = snapshots or Snapshots()
            name = f"{wanted.name_of_run(','.join(map(str, comm._endpoints)))} group {comm._peer_group}"
            found = comm._vaults[topic] = Vault(comm, wanted, name, topic, timeout)
            return found
    if snapshots is not None and snapshots != found.snapshots:
        raise ValueError(f"this communicator has snapshots already, with {found.snapshots}; pass the same again, or nothing")
    return found


def drop_vault(comm: Any, snapshots: Snapshots | None, topic: str) -> None:
    """Drops all snapshots of a communicator for a topic. A vault that is made for this does not stay: it binds no later call."""
    with _making:
        if topic not in comm._vaults:
            vault_of(comm, snapshots, topic).drop()
            comm._vaults.pop(topic, None)  # `close` may have removed it
            return
    vault_of(comm, snapshots, topic).drop()
