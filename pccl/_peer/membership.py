"""What a peer knows of the members of its run, what it tells them, and the votes of all of them."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from pccl._core.calls import (
    INVALID_USAGE,
    SUCCESS,
    TIMED_OUT,
    Deadline,
    NativeHandle,
    Ticket,
    call,
    milliseconds,
    take,
    whole_number,
)
from pccl._core.enums import Attribute
from pccl._core.errors import ArgumentError, ConnectionFailedError, Left, PCCLError, PCCLTimeoutError, Result, error_for, named
from pccl._core.groups import Group, members_of, uuid_of
from pccl._core.library import _C, _ffi
from pccl._core.names import name_of
from pccl._core.tensors import require_kind
from pccl._host.files import PATH_BYTES
from pccl._host.waits import WaitLog
from pccl._ops.collectives import CollectiveOp
from pccl._ops.operations import OpTicket
from pccl._ops.reduces import Multi, Op
from pccl._watch.reports import MISSING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from pccl.notice import Notice

FORM_PAUSE_SECONDS = 0.01
"""Between the votes of `wait_for_peers`; doubled up to FORM_PAUSE_MOST_SECONDS, so that waiting costs next to nothing."""

FORM_PAUSE_MOST_SECONDS = 0.1

FORM_GRACE_SECONDS = 0.5
"""How long a vote of `wait_for_peers` may outlast its deadline: five of the others' pauses."""

_NAME_OF_A_NUMBER = re.compile(r"[A-Za-z0-9_]{1,32}")

WITHIN_MOST = 4_000_000
"""Seconds until a member has to be gone that it announces at most: the wire carries milliseconds in 32 bits."""

NEWCOMERS_ONLY = 1
"""The value of the vote of `are_peers_pending` where newcomers wait, no member leaves, and the run has as many as it needs."""

UNSET = (1 << 32) - 1
"""A limit of the number of members that the environment gives, or nobody."""

NUMBERS_MOST = 16
"""Of a program, in one report."""

SHOWN_TAGS = 8
"""In a text."""


class Membership:
    """The members of a run, and what all of them vote on."""

    _handle: NativeHandle
    _pointer: Any
    _unfinished: dict[object, Ticket]
    """Calls whose result was not delivered: under way, or cut short and not repeated yet. Those of ops by their tags."""
    _live_ops: set[OpTicket]
    _vaults: dict[str, Any]
    """Snapshots, by what is in them."""
    _notices: list[Notice]
    _made_notices: list[Notice]
    """Those of signals, which nobody but this communicator needs."""
    _leaves: bool
    _missing: set[str]
    """Protections that were reported to be missing."""
    _exclusive: threading.Lock
    """Held by connect, update_topology, optimize_topology and sync_shared_state."""
    _asking: threading.Lock
    """Likewise, of are_peers_pending, which may run beside all others."""

    def close(self) -> None:
        """Leaves the run, see `Communicator.close`."""
        raise NotImplementedError

    # ---- membership ----

    def get_attribute(self, attribute: Attribute) -> int:
        """Returns the number that `attribute` names of the current membership, such as the world size.

        Members read the same numbers between the same two calls: a loss shows only after the error or the call that tells
        of it, a newcomer after `update_topology`. ConnectionFailedError: this peer has been expelled, or has lost its
        master for good; so 1 means that it is alone, never that it is cut off. INVALID_USAGE before `connect`.
        """
        require_kind("attribute", attribute, Attribute)
        value = self._read_attribute(attribute.value)
        if value == 1:
            self._check_alive()  # asked last: then the number is that of a living one
        return value

    @property
    def rank(self) -> int:
        """The place of this peer among the members of its group, in the order of joining: 0 to `world_size` - 1.

        Between the same two calls every member has another one. The order of those that stay does not change, but a rank
        becomes smaller when a member with a smaller one is lost: read it anew for each step. Raises what `get_attribute`
        raises, and PeerLostError when members died together with a master: it is known again after the next op, which
        tells of them, or `update_topology`.
        """
        return self._read_attribute(_C.PCCL_ATTRIBUTE_PEER_GROUP_RANK, "rank")

    @property
    def world_size(self) -> int:
        """The number of members of this peer's group, as `get_attribute(Attribute.LOCAL_WORLD_SIZE)`."""
        with named("world_size"):
            return self.get_attribute(Attribute.LOCAL_WORLD_SIZE)

    @property
    def global_world_size(self) -> int:
        """The number of members of all groups, as `get_attribute(Attribute.GLOBAL_WORLD_SIZE)`."""
        with named("global_world_size"):
            return self.get_attribute(Attribute.GLOBAL_WORLD_SIZE)

    @property
    def alive(self) -> bool:
        """Whether this peer is connected and still part of the run. `reconnect` helps one that is not."""
        try:
            self._check_alive()
        except PCCLError:
            return False
        return True

    @named("wait_for_peers")
    def wait_for_peers(self, peers: int, *, timeout: float | None = None) -> None:
        """Waits until the run has `peers` members, all groups together, and lets newcomers in meanwhile.

        It is `update_topology`, repeated with pauses: every member calls it with the same number, those that were just let
        in too, and all return with the same membership; at once where so many are there. A peer that joins a run under way
        must not wait for more than are there, for the others are in other calls.

        After 10 s it logs how many are there. PCCLTimeoutError after `timeout` seconds says so, too. The others may wait on: call
        it again, or `close`.
        """
        peers = whole_number("peers", peers, 32)
        deadline = Deadline(timeout)
        pause = FORM_PAUSE_SECONDS
        log = WaitLog("wait_for_peers")
        while (there := self.global_world_size) < peers:
            log.tell(f"{there} of {peers} peers are there")
            if not deadline.passed():
                # The others pause too: beyond its own deadline it waits for them to come out of that, so that no vote stays open.
                left = deadline.remaining()
                with contextlib.suppress(PCCLTimeoutError):
                    self.update_topology(timeout=None if left is None else left + FORM_GRACE_SECONDS)
                there = self.global_world_size
            if there < peers and deadline.passed():
                text = f"{there} of {peers} peers are there; call wait_for_peers again to wait on, or call close()"
                raise PCCLTimeoutError(Result.TIMED_OUT, "pcclUpdateTopology", text)
            if there < peers:
                deadline.sleep(pause)
                pause = min(2 * pause, FORM_PAUSE_MOST_SECONDS)

    @property
    def uuid(self) -> UUID:
        """What `contributors` call this peer. Every connection gives a new one; all 0 before the first."""
        return uuid_of(self._handle)

    def report(self, **numbers: float) -> None:
        """Puts numbers of the program beside those of the library, such as `comm.report(loss=loss, tokens=tokens)`.

        `pccl top`, `pccl web`, `/metrics`, `diagnose` and the events show the newest of each name, of the 16 names that were
        reported last. Does not wait. The master hears of them at most five times a second. Names have 1 to 32 ASCII letters,
        digits and underscores, and a call has at most 16: ArgumentError otherwise, and for what is no number. NaN is a number.
        """
        if len(numbers) > NUMBERS_MOST:
            raise ArgumentError(f"report takes at most {NUMBERS_MOST} numbers, not {len(numbers)}")
        for name in numbers:
            if not _NAME_OF_A_NUMBER.fullmatch(name):
                raise ArgumentError(f"the name of a number must have 1 to 32 letters, digits and underscores, not {name!r}")
        values = _ffi.new("double[]", [_number(name, value) for name, value in numbers.items()])
        names = [_ffi.new("char[]", name.encode()) for name in numbers]
        call(self._handle, "pccl_ext_comm_report", _ffi.new("char *[]", names), values, len(names))

    def _note_protections(self, **missing: bool) -> None:
        """Reports which protections of this peer are missing, or there again, unless it did. The caller logs why."""
        changed = {name for name, one in missing.items() if one != (name in self._missing)}
        if changed:
            with contextlib.suppress(PCCLError):
                self.report(**{MISSING + name: float(missing[name]) for name in changed})
                self._missing ^= changed  # in one step, since threads report too

    @property
    def event_file(self) -> str | None:
        """Path of the file with the last events of this peer (docs/events.md). None: not connected yet, or there is none."""
        out = _ffi.new("char[]", PATH_BYTES)
        call(self._handle, "pccl_ext_comm_events", out, PATH_BYTES)
        return os.fsdecode(_ffi.string(out)) or None

    @property
    def name(self) -> str:
        """What logs, errors and tables call this peer; see the constructor."""
        return name_of(self._handle, self.uuid)

    @property
    def peer_names(self) -> dict[UUID, str]:
        """The names of the peer group's members as they are now, by uuid, in the order of `members`; "" for one without a name.

        Raises what `members` raises.
        """
        return {uuid: name_of(self._handle, uuid) for uuid in self.members}

    @property
    def members(self) -> tuple[UUID, ...]:
        """The uuids of the peer group's members as they are now, in the order in which they joined."""
        return members_of(self._handle)

    @property
    def _snapshot(self) -> tuple[UUID, ...]:
        """The members that `world_size` counts: the same on all of them between the same two calls."""
        return members_of(self._handle, snapshot=True)

    def group(self, members: Sequence[UUID]) -> Group:
        """A group of these members, whose ranks are their places; this peer has to be one of them. Nobody is told."""
        return Group(self._handle, members)

    def posted(self, tag: int, member: UUID) -> bool:
        """Whether that member has launched an op of this tag that was not launched here: for a receive from any source.

        TypeError, ValueError: a tag or a member that cannot be.
        """
        tag = whole_number("tag", tag, 64)
        require_kind("member", member, UUID)
        uuid = _ffi.new("pcclRankUuid_t *", (list(member.bytes),))
        out = _ffi.new("bool *")
        call(self._handle, "pccl_ext_posted", tag, uuid, out)
        return bool(out[0])

    # ---- leaving ----

    def leave(self, *, within: float | None = None) -> None:
        """Announces that this peer leaves at the next `update_topology` of all members, which raises Left here.

        Until then it takes part as before; `are_peers_pending` is True on all members, so programs that admit newcomers call
        `update_topology` by themselves. No operation is under way then, so nobody's is aborted. Returns at once, in any thread.
        `within`: in how many seconds it has to be gone, for `leaving` on all members, which see 4,000,000 at most; None: that is
        not known. UsageError: not connected.
        """
        self._announce(within, at_update=True)
        self._leaves = True

    def leaves_on(self, notice: Notice | signal.Signals) -> Notice:
        """Makes a notice, or a signal, call `leave`; see `pccl.notice`. Returns the notice.

        One that comes before `connect`, or while the run is joined, takes effect afterwards. `close` gives a signal back its
        handler before, unless it has come; a Notice stays.
        """
        from pccl.notice import as_notice, weakly

        found = as_notice(notice)
        self._notices.append(found)
        if found is not notice:
            self._made_notices.append(found)
        found.listen(weakly(self._on_notice))
        return found

    @property
    def leaving(self) -> dict[UUID, float | None]:
        """The members that have announced that they leave, and in how many seconds each has to be gone; None: not known.

        For information: other members may hear of it a moment later. UsageError: not connected.
        """
        with named("leaving"):
            room, count = len(self.members) + 1, _ffi.new("size_t *")
        while True:
            uuids, within = _ffi.new("pcclRankUuid_t[]", room), _ffi.new("int64_t[]", room)
            call(self._handle, "pccl_ext_comm_leaving", uuids, within, room, count, name="leaving")
            if count[0] <= room:
                break
            room = count[0]
        seconds = [None if within[i] < 0 else within[i] / 1000 for i in range(count[0])]
        return {UUID(bytes=bytes(uuids[i].data)): seconds[i] for i in range(count[0])}

    def _announce(self, within: float | None, *, at_update: bool) -> None:
        with contextlib.suppress(TypeError):  # the next line refuses what is no number
            within = None if within is None else min(within, WITHIN_MOST)
        limit = UNSET if within is None else milliseconds("within", within, 0, WITHIN_MOST)
        call(self._handle, "pccl_ext_comm_leave", limit, at_update, name="leave")

    def _on_notice(self, notice: Notice) -> None:
        with contextlib.suppress(PCCLError):  # not connected yet, or not any more
            self.leave(within=notice.seconds_left)

    # ---- topology ----

    def update_topology(self, *, timeout: float | None = None) -> None:
        """Lets all newcomers in that wait and can be reached. A barrier of all accepted peers of all groups.

        With `min_members` it waits until the run has so many, newcomers included. TooFewPeersError on all members: they were
        too few for `min_members_timeout`. The membership is unchanged then; call it again to wait on.

        Left, after `leave` on this peer: it is out of the run, and the communicator is closed.

        Waits first for snapshots of this communicator that are under way. PENDING_ASYNC_OPS while ops have not been awaited.
        """
        try:
            self._vote("pcclUpdateTopology", "pccl_begin_update", timeout)
        except ConnectionFailedError as error:
            if error.result is not Result.LEFT and not self._leaves:  # one that leaves is out in either case
                raise
            self.close()
            raise Left from None

    def are_peers_pending(self, *, timeout: float | None = None) -> bool:
        """Whether to call `update_topology`: a newcomer of any group waits for it, a member leaves, or the run has fewer members
        than `min_members`.

        The same answer on all accepted peers, for whom it waits. Admits nobody.
        """
        return self._pending(timeout) != 0

    def _pending(self, timeout: float | None = None) -> int:
        """The vote of `are_peers_pending`: 0, NEWCOMERS_ONLY, or another number. The same on all members."""
        alone = self._asking, "another such call of this communicator"
        return self._vote("pcclArePeersPending", "pccl_begin_pending", timeout, *alone)

    def optimize_topology(self, *, timeout: float | None = None) -> None:
        """Orders each group's ring so that its slowest link is as fast as possible, by measuring the links not yet known.

        A barrier of all accepted peers of all groups. Never required. Waits first for snapshots of this communicator that are
        under way. INVALID_USAGE with fewer than two peers in the run.
        """
        self._vote("pcclOptimizeTopology", "pccl_begin_optimize", timeout)

    # ---- inside ----

    @contextlib.contextmanager
    def _alone(
        self,
        name: str,
        lock: threading.Lock | None = None,
        other: str = "another topology, sync or connect call of this communicator",
    ) -> Iterator[None]:
        """Keeps calls apart that exclude each other: C takes up one that nobody is in, as between two slices."""
        self._handle.check_owner(name)
        taken: list[bool] = []
        try:
            if not take(taken, lock or self._exclusive, 0):
                raise error_for(INVALID_USAGE, name, f"{other} is running")
            yield
        finally:
            if taken:
                (lock or self._exclusive).release()

    def _finish(
        self,
        name: str,
        begin: str,
        *arguments: Any,
        deadline: Deadline,
        key: object = None,
        keep: object = None,
        watch: Callable[[], None] | None = None,
    ) -> Ticket:
        """Makes a call with the communicator as its first argument, or ends the one that was cut short under `key`.

        After a success, `_forget` has to be the last that the caller does.
        """
        key = key or name
        ticket = self._unfinished.get(key)
        if ticket is None:
            ticket = self._unfinished[key] = Ticket(name, begin, self._pointer, *arguments, keep=keep)
        self._complete(key, ticket, deadline, watch)
        return ticket

    def _complete(self, key: object, ticket: Ticket, deadline: Deadline, watch: Callable[[], None] | None = None) -> None:
        """Begins a call that is kept under `key`, unless it was begun, and waits for its success."""
        result = ticket.proceed(self._handle, deadline, watch)
        if result not in (SUCCESS, TIMED_OUT):
            if result == _C.pcclPendingAsyncOps:
                ticket.detail = self._pending_text() or ticket.detail
            if not ticket.in_flight:  # else the communicator is being closed, and C may touch what the call keeps until then
                self._forget(key, ticket)
        ticket.check()

    def _vote(self, name: str, begin: str, timeout: float | None, *alone: Any) -> int:
        """Makes a vote; `alone` is for `_alone`."""
        deadline = Deadline(timeout)
        for notice in self._notices:  # one given before this step boundary counts here, though its thread may not have run
            if notice.given and not self._leaves:
                self._on_notice(notice)
        if name != "pcclArePeersPending":  # which operations may run beside
            self._settle_snapshots(deadline)
        with self._alone(name, *alone):
            ticket = self._finish(name, begin, deadline=deadline)
            value: int = ticket.c.value
        self._forget(name, ticket)
        return value

    def _settle_snapshots(self, deadline: Deadline) -> None:
        """Waits for snapshots under way, whose operations would be pending on some members only. PCCLTimeoutError."""
        for vault in list(self._vaults.values()):
            vault.settle(deadline.remaining())

    def _forget(self, key: object, ticket: Ticket) -> None:
        """Until here a call that is repeated after a signal gives the result that there is, and makes no second vote."""
        try:
            if self._unfinished.get(key) is ticket:  # else another thread has closed the communicator, or has the tag
                del self._unfinished[key]  # not `pop`, as whose result a signal could come
        except KeyError:  # closed just now
            pass

    def _pending_text(self) -> str:
        """Which ops have not been awaited, and how to."""
        unfinished = list(self._unfinished.values())
        kept = sorted(op.tag for op in unfinished if isinstance(op, Op) and op.in_flight)
        live = list(self._live_ops)
        others = sorted({op.tag for op in live if isinstance(op, Op)} - set(kept))
        collectives = sorted({op.name for op in live if isinstance(op, CollectiveOp)})
        ways = []
        if others:
            ways.append(f"wait for the handles of all_reduce_async with tag {_numbers(others)}")
        if collectives:
            ways.append(
                f"wait for the handle of each {' and '.join(collectives)}, or repeat the call if it timed out or was interrupted"
            )
        if kept:
            ways.append(f"repeat the interrupted reduce with tag {_numbers(kept)} with the same arguments")
        if any(isinstance(ticket, Multi) and not ticket.one_caller.locked() for ticket in unfinished):
            ways.append("repeat the interrupted all_reduce_multiple_with_retry with the same arguments")
        return f"operations are not awaited; {'; '.join(ways)}" if ways else ""

    def _read_attribute(self, attribute: int, name: str = "") -> int:
        out = _ffi.new("int *")
        call(self._handle, "pcclGetAttribute", attribute, out, name=name)
        return int(out[0])

    def _check_alive(self) -> None:
        """Raises the error of a dead, closed or never connected communicator; C has it for its every call but the world sizes."""
        call(self._handle, "pccl_ext_comm_alive", name="pcclGetAttribute")


def _number(name: str, value: Any) -> float:
    """Returns a value that a program reports as a float. ArgumentError: it is no number."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(value.detach() if hasattr(value, "detach") else value)  # torch warns of a tensor with a gradient
    except OverflowError:
        raise ArgumentError(f"{name} must be a number, not one beyond the range of a float") from None
    except (TypeError, ValueError, RuntimeError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ArgumentError(f"{name} must be a number, not {type(value).__name__}{shape}") from None


def _numbers(some: list[int]) -> str:
    shown = ", ".join(map(str, some[:SHOWN_TAGS]))
    return f"{shown} and {len(some) - SHOWN_TAGS} more" if len(some) > SHOWN_TAGS else shown
