"""A peer's connection to a run: it joins, leaves, and knows the members."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from pccl import _log
from pccl._address import (
    IP,
    MASTERS_MAX,
    Endpoint,
    fill_socket_address,
    fill_socket_addresses,
    parse_endpoints,
    permitted,
    resolve,
)
from pccl._calls import INVALID_USAGE, SUCCESS, TIMED_OUT, Deadline, NativeHandle, Ticket, call, milliseconds, whole_number
from pccl._collectives import CollectiveOp, Tags
from pccl._credentials import credentials
from pccl._enums import Attribute
from pccl._errors import (
    ArgumentError,
    ConnectError,
    ConnectionFailedError,
    Left,
    PCCLError,
    PCCLTimeoutError,
    Result,
    error_for,
    named,
)
from pccl._files import PATH_BYTES, event_file
from pccl._groups import Group, members_of, uuid_of
from pccl._handle import Events
from pccl._loader import load_native_module
from pccl._names import check_name, name_of
from pccl._operations import OpTicket, stop
from pccl._reduces import Multi, Op, Reaper
from pccl._stacks import Watch
from pccl._state import SharedState
from pccl._tensors import RoomPool, require_kind
from pccl._waits import WaitLog, master_patience, may_begin

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Literal

    from pccl._spans import Spans
    from pccl.notice import Notice

_ffi, _C = load_native_module()
PCCLError.check(_C.pcclInit(), "pcclInit")

PAUSE_SECONDS = 1.0
"""After each failed attempt to connect."""

FORM_PAUSE_SECONDS = 0.01
"""Between the votes of `wait_for_peers`; doubled up to FORM_PAUSE_MOST_SECONDS, so that waiting costs next to nothing."""

FORM_PAUSE_MOST_SECONDS = 0.1

FORM_GRACE_SECONDS = 0.5
"""How long a vote of `wait_for_peers` may outlast its deadline: five of the others' pauses."""

STATE_BYTES = 256

WITHIN_MOST = 4_000_000
"""Seconds until a member has to be gone that it announces at most: the wire carries milliseconds in 32 bits."""

GIVES_ONCE_SYNCED, GIVES_AT_ONCE, GIVES_NEVER = range(3)
"""When a peer gives the state that it copies, as a newcomer, to others (`pccl_ext_comm_set_state`)."""

NEWCOMERS_ONLY = 1
"""The value of the vote of `are_peers_pending` where newcomers wait, no member leaves, and the run has as many as it needs."""

_UNSET = (1 << 32) - 1
"""A limit of the number of members that the environment gives, or nobody."""

NUMBERS_MOST = 16
"""Of a program, in one report."""

SHOWN_TAGS = 8
"""In a text."""


def _wants_spans(asked: bool | None) -> bool:
    """`pccl._spans` is imported only where somebody may want spans."""
    if not asked and (asked is False or not any(name.startswith("OTEL_") for name in os.environ)):
        return False
    from pccl._spans import is_wanted

    return is_wanted(asked)


def _stop(live: set[Any], stacks: Watch, pointer: Any) -> None:
    stop(live, pointer)
    stacks.join()


class Connection:
    """The part of a `Communicator` that needs no tensors: joining and leaving, the membership, and the votes of the topology."""

    def __init__(
        self,
        address: str,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        master_recovery_limit: float | None = None,
        min_members: int | None = None,
        max_members: int | None = None,
        min_members_timeout: float | None = None,
        name: str | None = None,
        interface: str | Sequence[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        events: str | os.PathLike[str] | Literal[False] | None = None,
        spans: bool | None = None,
    ) -> None:
        _log.attach()
        self._endpoints = parse_endpoints(address)
        self._endpoint = self._endpoints[0]
        self._recovery_ms: int | None = None
        if master_recovery_limit is not None:
            self._recovery_ms = milliseconds("master_recovery_limit", master_recovery_limit, 0, 3600)
        self._limits = (
            _UNSET if min_members is None else whole_number("min_members", min_members, 31),
            _UNSET if max_members is None else whole_number("max_members", max_members, 31),
            _UNSET if min_members_timeout is None else milliseconds("min_members_timeout", min_members_timeout, 0, 86400),
        )
        self._name = None if name is None else check_name(name)
        self._interface = interface if interface is None or isinstance(interface, str) else ",".join(interface)
        self._keys = credentials(keys, cert, key, ca)
        self._insecure = insecure
        self._event_path = None if events is None else event_file(events)
        self._wants_spans = _wants_spans(spans)
        self._spans: Spans | None = None
        self._peer_group = whole_number("peer_group", peer_group, 32)
        self._pool_size = whole_number("p2p_connection_pool_size", p2p_connection_pool_size, 32)
        self._connected = False
        # Calls whose result was not delivered: under way, or cut short and not repeated yet. Those of ops by their tags.
        self._unfinished: dict[object, Ticket] = {}
        self._live_ops: set[OpTicket] = set()
        self._pool = RoomPool()
        self._state_to_copy: SharedState | None = None  # C reads it until the communicator is freed
        self._gives = GIVES_ONCE_SYNCED
        self._vaults: dict[str, Any] = {}  # snapshots, by what is in them
        self._notices: list[Notice] = []
        self._exclusive = threading.Lock()  # held by connect, update_topology, optimize_topology and sync_shared_state
        self._asking = threading.Lock()  # likewise, of are_peers_pending, which may run beside all others
        self._adopt(self._create(self._endpoint.literal), self._endpoint.literal)

    # ---- life ----

    def connect(
        self,
        n_attempts: int = 5,
        *,
        timeout: float | None = None,
        begin: bool | None = None,
        wait_for_master: float | None = None,
        state: SharedState | None = None,
    ) -> None:
        """Joins the run: returns once this peer is accepted and all attributes are valid.

        The first peer of a run is accepted at once; a newcomer waits until all accepted peers are in `update_topology`.
        Each of `n_attempts` looks the host name up and tries all its addresses; a pause of 1 s follows a failed one.
        ConnectError when all have failed. Usage errors are not repeated, such as INVALID_USAGE when connected already, or at a
        master of another wire version.

        `begin=False`: the peer never begins a run. ConnectError if no run goes on. None: True, unless PCCL_JOIN=1 is set, as it
        is for a restarted process. `wait_for_master`: attempts go on for at least so many seconds, for machines that start
        before their master; None: as the environment variable PCCL_CONNECT_TIMEOUT_S says, else 0.

        `state`: what the members sync. A newcomer copies it from a member that has passed one, while the members go on, and is
        admitted when that is done; `sync_shared_state` then fetches only what has changed since. From its first sync on, this
        peer gives its own state to newcomers, until it is closed. After an error of `connect` the tensors are unspecified.
        INVALID_ARGUMENT: a tensor was replaced since the state was made.
        """
        deadline = Deadline(timeout)
        if state is not None:
            require_kind("state", state, SharedState)
            state._collect("pcclConnect")
            self._state_to_copy, self._gives = state, GIVES_ONCE_SYNCED
        patience = Deadline(master_patience(wait_for_master))
        join_only = not may_begin(begin)
        failure = ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", "no attempt was allowed")
        _log.attach()
        with self._alone("pcclConnect"):
            for attempt in itertools.count(1):
                if attempt > n_attempts and patience.passed():
                    break
                try:
                    self._attempt(deadline, join_only)
                    return
                except ConnectError as error:
                    failure = error
                if deadline.passed():
                    raise PCCLTimeoutError(Result.TIMED_OUT, "pcclConnect", failure.detail)
                deadline.sleep(PAUSE_SECONDS)
        raise failure

    def reconnect(
        self,
        n_attempts: int = 5,
        *,
        timeout: float | None = None,
        begin: bool | None = None,
        wait_for_master: float | None = None,
        state: SharedState | None = None,
    ) -> None:
        """Joins again, as a new peer, after this one was expelled or has lost its master. Else it leaves first.

        Ops in flight are cancelled, as by `close`. Connects as `connect` does, with the same arguments; cut short or failed, it
        is `connect` that goes on. Without a `state`, the one that was passed before is copied and given again.
        A SharedState keeps its tensors and revision, and the next sync brings it up to date. Snapshots stay as well.
        INVALID_USAGE after `close`.
        """
        with self._alone("pcclConnect"):
            if self._handle.closed:
                raise error_for(INVALID_USAGE, "pcclConnect", "the communicator is closed")
            fresh = self._create(self._ip)
            kept, self._vaults = self._vaults, {}  # else `close` would free them
            try:
                self.close()
                for vault in kept.values():
                    vault.settle()
            finally:  # after Ctrl-C too, `connect` goes on with the fresh one
                self._vaults = kept
                self._adopt(fresh, self._ip)
                self._connected = False
        self.connect(n_attempts, timeout=timeout, begin=begin, wait_for_master=wait_for_master, state=state)

    def close(self) -> None:
        """Leaves the run and frees everything, in bounded time. Idempotent.

        Calls blocked in other threads end with an error; ops in flight are cancelled, and their tensors are free afterwards.
        Handles tell which ops had ended well before.
        """
        self._end_spans()
        self._handle.close()
        self._events.closed()
        self._reaper.stop()
        self._unfinished.clear()
        for op in list(self._live_ops):
            op.dropped = None  # which holds the op in turn
        self._live_ops.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        return f"<Communicator {','.join(map(str, self._endpoints))} group {self._peer_group}: {self._state()}>"

    def _begin_spans(self) -> None:
        path = self.event_file if self._wants_spans else None
        if path is not None:
            from pccl._spans import Spans

            self._end_spans()
            self._spans = Spans(path)

    def _end_spans(self) -> None:
        spans, self._spans = self._spans, None
        if spans is not None:
            spans.close()

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

        `pccl top`, `pccl web`, `/metrics`, `diagnose` and the events show the newest. Does not wait. The master hears of them at
        most five times a second; further calls are recorded here alone. Names have 1 to 32 ASCII letters, digits and
        underscores, and there are at most 16: ArgumentError otherwise, and for what is no number. NaN is a number.
        """
        if len(numbers) > NUMBERS_MOST:
            raise ArgumentError(f"report takes at most {NUMBERS_MOST} numbers, not {len(numbers)}")
        for name, value in numbers.items():
            if not re.fullmatch(r"[A-Za-z0-9_]{1,32}", name):
                raise ArgumentError(f"the name of a number must have 1 to 32 letters, digits and underscores, not {name!r}")
            if isinstance(value, (bool, str, bytes)):
                raise ArgumentError(f"{name} must be a number, not {value!r}")
        try:
            values = _ffi.new("double[]", [float(value) for value in numbers.values()])
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"report takes numbers alone: {error}") from None
        names = [_ffi.new("char[]", name.encode()) for name in numbers]
        call(self._handle, "pccl_ext_comm_report", _ffi.new("char *[]", names), values, len(names))

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
        """Whether that member has launched an op of this tag that was not launched here: for a receive from any source."""
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

        One that comes before `connect`, or while the run is joined, takes effect afterwards.
        """
        from pccl.notice import as_notice, weakly

        found = as_notice(notice)
        self._notices.append(found)
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
        limit = _UNSET if within is None else milliseconds("within", within, 0, WITHIN_MOST)
        call(self._handle, "pccl_ext_comm_leave", limit, at_update, name="leave")

    def _copy(self, state: SharedState) -> None:
        """Makes the next `connect` copy this state, which newcomers get from this peer only after `_offer`."""
        state._collect("pcclConnect")
        self._state_to_copy, self._gives = state, GIVES_NEVER

    def _offer(self, state: SharedState | None) -> None:
        """Gives newcomers this state, which is that of the run, until another one or None takes its place."""
        entries = (_ffi.NULL, _ffi.NULL) if state is None else (state.to_c(), state._read_only())
        call(self._handle, "pccl_ext_comm_set_state", *entries, GIVES_AT_ONCE, name="pcclConnect")
        self._state_to_copy, self._gives = state, GIVES_ONCE_SYNCED  # C has let go of the one before

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

    def _create(self, ip: IP | None) -> Any:
        params = _ffi.new("pcclCommCreateParams_t *")
        if ip is not None:
            fill_socket_address(params.master_address, ip, self._endpoint.port)
        params.peer_group = self._peer_group
        params.p2p_connection_pool_size = self._pool_size
        out = _ffi.new("pcclComm_t **")
        PCCLError.check(_C.pcclCreateCommunicator(params, out), "pcclCreateCommunicator")
        pointer = out[0]
        settings = {
            _C.pccl_ext_comm_set_recovery: self._recovery_ms,
            _C.pccl_ext_comm_set_limits: None if self._limits == (_UNSET,) * 3 else self._limits,
            _C.pccl_ext_comm_set_name: self._name,
            _C.pccl_ext_comm_set_interface: None if self._interface is None else self._interface.encode(),
            _C.pccl_ext_comm_set_run: self._endpoint.run.encode(),
            _C.pccl_ext_comm_set_keys: self._keys,
            _C.pccl_ext_comm_set_events: self._event_path,
            _C.pccl_ext_comm_set_insecure: self._insecure or None,
        }
        try:
            for function, value in settings.items():
                arguments = value if isinstance(value, tuple) else (value,)
                if value is not None:
                    PCCLError.check(function(pointer, *arguments), "pcclCreateCommunicator")
        except BaseException:
            _C.pcclDestroyCommunicator(pointer)
            raise
        return pointer

    def _adopt(self, pointer: Any, ip: IP | None) -> None:
        """Takes a new C communicator as the one in use. C takes addresses only, so each address tried has its own."""
        self._pointer = pointer
        self._ip = ip
        self._stacks = Watch()
        ends = functools.partial(_stop, self._live_ops, self._stacks)
        self._handle = NativeHandle("communicator", pointer, _C.pcclDestroyCommunicator, ends)
        self._events = Events(self._handle)
        self._leaves = False
        self._reaper = Reaper(self._handle, self._unfinished)
        self._tags = Tags()

    def _attempt(self, deadline: Deadline, join_only: bool) -> None:
        """One attempt over all addresses. ConnectError: it may be repeated; any other PCCLError: it may not."""
        if self._connected or self._handle.closed or "pcclConnect" in self._unfinished:
            self._connect_once(deadline)  # on the object that is there
            return
        if len(self._endpoints) > 1:
            self._attempt_list(deadline, join_only)
            return
        addresses = self._resolve(self._endpoint, deadline)
        for position, ip in enumerate(addresses):
            if ip != self._ip:
                fresh = self._create(ip)
                self._handle.close()
                self._adopt(fresh, ip)
            try:
                self._set_up(join_only)
                self._connect_once(deadline)
                return
            except ConnectError:
                if position == len(addresses) - 1:
                    raise

    def _attempt_list(self, deadline: Deadline, join_only: bool) -> None:
        """One attempt over all masters of the list; C tries them in turn, and keeps them for when the master is lost."""
        found: list[tuple[IP, int]] = []
        failure: ConnectError | None = None
        for endpoint in self._endpoints:
            try:
                found += [(ip, endpoint.port) for ip in self._resolve(endpoint, deadline)]
            except ConnectError as error:  # a standby whose name is not known today
                failure = error
        if failure is not None and not found:
            raise failure
        masters = fill_socket_addresses(found[:MASTERS_MAX])
        with self._handle as pointer:
            PCCLError.check(_C.pccl_ext_comm_set_masters(pointer, masters, len(masters)), "pcclConnect")
        self._set_up(join_only)
        self._connect_once(deadline)

    def _resolve(self, endpoint: Endpoint, deadline: Deadline) -> list[IP]:
        """Returns the addresses of a master that this peer may talk to."""
        try:
            addresses = resolve(endpoint, deadline)
        except TimeoutError as error:
            raise PCCLTimeoutError(Result.TIMED_OUT, "pcclConnect", str(error)) from None
        except OSError as error:
            text = f"the name {endpoint.host} cannot be resolved: {error.strerror or error}"
            raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", text) from None
        keys = _ffi.NULL if self._keys is None else self._keys
        return permitted(endpoint, addresses, keys, self._insecure, "pcclConnect")

    def _set_up(self, join_only: bool) -> None:
        call(self._handle, "pccl_ext_comm_set_join_only", join_only, name="pcclConnect")
        self._stacks.start(self._handle)
        if self._state_to_copy is not None:
            arguments = (self._state_to_copy.to_c(), self._state_to_copy._read_only(), self._gives)
            call(self._handle, "pccl_ext_comm_set_state", *arguments, name="pcclConnect")

    def _connect_once(self, deadline: Deadline) -> None:
        try:
            ticket = self._finish("pcclConnect", "pccl_begin_connect", deadline=deadline)
        except PCCLTimeoutError as error:
            waits = self._unfinished["pcclConnect"].waits_for()
            waits = waits or "not admitted yet: newcomers wait until all members call update_topology; "
            error.detail = f"{waits}connect again to wait on"
            raise
        except PCCLError as error:
            if error.result in (Result.MASTER_CONNECTION_FAILED, Result.RANK_CONNECTION_FAILED, Result.INTERNAL_ERROR):
                raise ConnectError(error.result, "pcclConnect", error.detail) from None
            raise
        self._connected = True
        self._begin_spans()
        self._tags.restart()
        self._forget("pcclConnect", ticket)
        for notice in self._notices:
            if notice.given:
                self._on_notice(notice)

    @contextlib.contextmanager
    def _alone(
        self,
        name: str,
        lock: threading.Lock | None = None,
        other: str = "another topology, sync or connect call of this communicator",
    ) -> Iterator[None]:
        """Keeps calls apart that exclude each other: C takes up one that nobody is in, as between two slices."""
        if self._handle.inherited:
            raise error_for(INVALID_USAGE, name, self._handle.inherited_text)
        taken: list[bool] = []
        try:
            taken.extend(map((lock or self._exclusive).acquire, (False,)))  # by C: no signal comes in between
            if not taken[0]:
                raise error_for(INVALID_USAGE, name, f"{other} is running")
            yield
        finally:
            if taken and taken[0]:
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
        for notice in self._notices:  # so that one which was given before this step boundary counts here
            notice.given  # noqa: B018
        if name != "pcclArePeersPending":  # which operations may run beside
            self._settle_snapshots(deadline)
        with self._alone(name, *alone):
            ticket = self._finish(name, begin, deadline=deadline)
            value: int = ticket.c.value
            if name == "pcclUpdateTopology":
                self._tags.restart()
        self._forget(name, ticket)
        return value

    def _settle_snapshots(self, deadline: Deadline) -> None:
        """Waits for snapshots under way, whose operations would be pending on some members only. PCCLTimeoutError."""
        for vault in list(self._vaults.values()):
            vault.settle(deadline.remaining())

    def _forget(self, key: object, ticket: Ticket) -> None:
        """Until here a call that is repeated after a signal gives the result that there is, and makes no second vote."""
        if self._unfinished.get(key) is ticket:  # else another thread has closed the communicator, or has the tag
            del self._unfinished[key]  # not `pop`, as whose result a signal could come

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

    def _state(self) -> str:
        text = _ffi.new("char[]", STATE_BYTES)
        with contextlib.suppress(Exception), self._handle as pointer:
            if _C.pccl_ext_comm_state(pointer, text, STATE_BYTES) == SUCCESS:
                state: str = _ffi.string(text).decode("utf-8", "replace")
                return state
        return "of the parent process" if self._handle.inherited else "closed"


def _numbers(some: list[int]) -> str:
    shown = ", ".join(map(str, some[:SHOWN_TAGS]))
    return f"{shown} and {len(some) - SHOWN_TAGS} more" if len(some) > SHOWN_TAGS else shown
