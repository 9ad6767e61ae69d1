"""A peer's part in a run."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from pccl import _log
from pccl._address import IP, MASTERS_MAX, Endpoint, fill_socket_address, fill_socket_addresses, parse_endpoints, resolve
from pccl._calls import INVALID_USAGE, SUCCESS, TIMED_OUT, Deadline, NativeHandle, Ticket, call, milliseconds, whole_number
from pccl._collectives import Collective, CollectiveOp, Group, has_posted, members_of
from pccl._diagnosis import Diagnosis, diagnose
from pccl._enums import Attribute, DataType, ReduceOp, Result, SharedStateSyncStrategy
from pccl._errors import ConnectError, PCCLError, PCCLTimeoutError, error_for
from pccl._exports import publish
from pccl._feedback import ErrorFeedback
from pccl._handle import Events
from pccl._links import Link, links_of
from pccl._loader import load_native_module
from pccl._named import CollectiveHandle, NamedCollectives
from pccl._names import check_name, name_of
from pccl._ops import (
    AsyncReduceHandle,
    Multi,
    Op,
    OpArguments,
    Reaper,
    contributors,
    op_arguments,
    reduce_info,
    request_cancel,
    stop,
)
from pccl._state import SharedState, SharedStateSyncInfo, SyncProgress, sync_info, sync_report, watcher
from pccl._tensors import Buffers, plain_memory, reduce_buffers, require_kind
from pccl._types import (
    NOT_QUANTISED,
    Contributors,
    QuantizationOptions,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    check_fits,
    reduce_numbers,
)
from pccl._waits import WaitLog, master_patience, may_begin

if TYPE_CHECKING:
    import numpy as np
    import torch

    Tensor = torch.Tensor | np.ndarray[Any, Any]

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

SPARES_MAX = 4
"""Of ops that have ended: so many threads may reduce at a time and find one."""

SHOWN_TAGS = 8
"""In a text."""


class Communicator(NamedCollectives):
    """A peer of the run whose master is at `address`: `host:port`, `1.2.3.4:port` or `[ipv6]:port`, or a list of these with
    commas, for a run with standby masters.

    When the master is lost, everything waits for it, or for the next one of the list, to take the run up; nothing else is
    noticed of it. After `master_recovery_limit` seconds (default 60; 0 = at once) without one the communicator is dead.

    Peers of the same `peer_group` reduce and share state with each other; `p2p_connection_pool_size` is the number of lanes
    to each ring neighbour, 0 = the library decides: four, and more to one that is far away. Nothing touches the network
    before `connect`. In a `with` statement it is closed at the end, and connects not by itself.

    `name` is what logs, errors and tables call this peer, beside its uuid: 1 to 63 bytes of printable UTF-8 (ValueError). None:
    the environment variable PCCL_PEER_NAME, or the host name. Peers may have the same name.

    Every method may be called from any thread and raises PCCLError with the code of the C library. Methods that wait for
    others wait as long as those live; with `timeout` (seconds) they raise PCCLTimeoutError instead. After that, or after
    Ctrl-C, what was waited for goes on: the same call, repeated, waits on for it.
    """

    def __init__(
        self,
        address: str,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        master_recovery_limit: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        _log.attach()
        self._endpoints = parse_endpoints(address)
        self._endpoint = self._endpoints[0]
        self._recovery_ms: int | None = None
        if master_recovery_limit is not None:
            self._recovery_ms = milliseconds("master_recovery_limit", master_recovery_limit, 0, 3600)
        self._name = None if name is None else check_name(name)
        self._peer_group = whole_number("peer_group", peer_group, 32)
        self._pool_size = whole_number("p2p_connection_pool_size", p2p_connection_pool_size, 32)
        self._connected = False
        # Calls whose result was not delivered: under way, or cut short and not repeated yet. Those of ops by their tags.
        self._unfinished: dict[object, Ticket] = {}
        self._live_ops: set[Op | CollectiveOp] = set()
        self._spares: list[Any] = []  # plain ops that have succeeded
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
    ) -> None:
        """Joins the run: returns once this peer is accepted and all attributes are valid.

        The first peer of a run is accepted at once; a newcomer waits until all accepted peers are in `update_topology`.
        Each attempt looks the host name up and tries all its addresses; a pause of 1 s follows each failed one. ConnectError
        when all have failed; usage errors, such as INVALID_USAGE when connected already, are not repeated.

        `begin=False`: the peer never begins a run. ConnectError if no run goes on. None: True, unless PCCL_JOIN=1 is set, as it
        is for a restarted process. `wait_for_master`: attempts go on for at least so many seconds, for machines that start
        before their master; None: as the environment variable PCCL_CONNECT_TIMEOUT_S says, else 0.
        """
        deadline = Deadline(timeout)
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
    ) -> None:
        """Joins again, as a new peer, after this one was expelled or has lost its master. Else it leaves first.

        Ops in flight are cancelled, as by `close`. Connects as `connect` does, with the same arguments; cut short or failed, it
        is `connect` that goes on.
        A SharedState keeps its tensors and revision, and the next sync brings it up to date. INVALID_USAGE after `close`.
        """
        with self._alone("pcclConnect"):
            if self._handle.closed:
                raise error_for(INVALID_USAGE, "pcclConnect", "the communicator is closed")
            fresh = self._create(self._ip)
            self.close()
            self._adopt(fresh, self._ip)
            self._connected = False
        self.connect(n_attempts, timeout=timeout, begin=begin, wait_for_master=wait_for_master)

    def close(self) -> None:
        """Leaves the run and frees everything, in bounded time. Idempotent.

        Calls blocked in other threads end with an error; ops in flight are cancelled, and their tensors are free afterwards.
        Handles tell which ops had ended well before.
        """
        self._handle.close()
        self._events.closed()
        self._reaper.stop()
        self._unfinished.clear()
        self._spares.clear()
        self._cut_short.clear()
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

    # ---- topology ----

    def get_attribute(self, attribute: Attribute) -> int:
        """A number of the current membership, such as the world size.

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
        return self._read_attribute(_C.PCCL_ATTRIBUTE_PEER_GROUP_RANK)

    @property
    def world_size(self) -> int:
        """The number of members of this peer's group, as `get_attribute(Attribute.LOCAL_WORLD_SIZE)`."""
        return self.get_attribute(Attribute.LOCAL_WORLD_SIZE)

    @property
    def global_world_size(self) -> int:
        """The number of members of all groups, as `get_attribute(Attribute.GLOBAL_WORLD_SIZE)`."""
        return self.get_attribute(Attribute.GLOBAL_WORLD_SIZE)

    @property
    def alive(self) -> bool:
        """Whether this peer is connected and still part of the run. `reconnect` helps one that is not."""
        try:
            self._check_alive()
        except PCCLError:
            return False
        return True

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
                text = f"{there} of {peers} peers are there; call wait_for_peers again to wait on, or close()"
                raise PCCLTimeoutError(Result.TIMED_OUT, "pcclUpdateTopology", text)
            if there < peers:
                deadline.sleep(pause)
                pause = min(2 * pause, FORM_PAUSE_MOST_SECONDS)

    def update_topology(self, *, timeout: float | None = None) -> None:
        """Lets all newcomers in that wait and can be reached. A barrier of all accepted peers of all groups.

        PENDING_ASYNC_OPS while ops have not been awaited.
        """
        self._vote("pcclUpdateTopology", "pccl_begin_update", timeout)

    def are_peers_pending(self, *, timeout: float | None = None) -> bool:
        """Whether a newcomer of any group waits: the same answer on all accepted peers, for whom it waits. Admits nobody."""
        alone = self._asking, "another such call of this communicator"
        return self._vote("pcclArePeersPending", "pccl_begin_pending", timeout, *alone) != 0

    def optimize_topology(self, *, timeout: float | None = None) -> None:
        """Orders each group's ring so that its slowest link is as fast as possible, by measuring the links not yet known.

        A barrier of all accepted peers of all groups. Never required. INVALID_USAGE with fewer than two peers in the run.
        """
        self._vote("pcclOptimizeTopology", "pccl_begin_optimize", timeout)

    # ---- shared state ----

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
        *,
        progress: Callable[[SyncProgress], object] | None = None,
        timeout: float | None = None,
    ) -> SharedStateSyncInfo:
        """Makes the tensors of `shared_state` the same bytes on all members of the group, and sets its revision.

        `progress` is called about ten times a second while it takes its time. INVALID_ARGUMENT: a tensor was replaced since.
        After an error the revision is as before; tensors that were to be received are unspecified, all others unchanged.
        """
        require_kind("shared_state", shared_state, SharedState)
        require_kind("strategy", strategy, SharedStateSyncStrategy)
        name = "pcclSynchronizeSharedState"
        with self._alone(name):
            key = (name, id(shared_state), strategy)
            keep = (shared_state, shared_state.revision)
            begun = self._unfinished.get(key)
            if begun is None or not begun.c.kind:
                shared_state._collect(name)
            elif begun.in_flight and begun.keep != keep:
                text = "another revision of this state is under way: set the revision back and call sync_shared_state again"
                raise error_for(INVALID_USAGE, name, text)
            arguments = (shared_state.to_c(), strategy.value, shared_state._read_only())
            watch = watcher(self._handle, progress)
            done = self._finish(name, "pccl_begin_sync", *arguments, deadline=Deadline(timeout), key=key, keep=keep, watch=watch)
            for other in [other for other in self._unfinished if isinstance(other, tuple) and other[0] == name and other != key]:
                del self._unfinished[other]  # whose round this call has taken up
            moved = sync_info(sync_report(self._handle))
            shared_state.revision = done.c.value
            if done.c.info.rx_bytes > 0:
                shared_state._restore()
        self._forget(key, done)
        return moved

    # ---- reduces ----

    def all_reduce(
        self,
        send: Tensor,
        recv: Tensor | None = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        retry: bool = False,
        residual: ErrorFeedback | None = None,
        survivors: bool | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> ReduceInfo:
        """Reduces `send` over the members of the group into `recv`, or in place, where `recv` is the same tensor or left out.

        Both are torch tensors, numpy arrays, or arrays with the CUDA array interface (ValueError), contiguous, on one device
        and alike in type and size (AssertionError). At a GPU the op begins after what the current stream of torch, or the
        stream that the interface names, has had so far (docs/cuda.md). All members give the same count, type, op and
        quantisation under one `tag`. Shapes are not compared: (2, 3) and (3, 2) are reduced element by element, as they lie in
        memory. Without descriptors the elements are of the tensors' dtype and not quantised. A parameter that requires a
        gradient is written like any other tensor, unseen by autograd.

        PeerLostError: a member was lost; `send` is as before, in place too, and the repeat runs among the survivors.
        TooFewPeersError: alone in the group. UsageError: the tag is in flight, or the peers disagree.

        `op` is a ReduceOp or its name, such as "avg". `survivors` is the same as `retry`, under the name that the other
        collectives have; ValueError: the two contradict each other.

        With `retry`, the loss of members is no error: what all survivors had complete stays, the rest is redone among them, and
        the info's `contributors` tell who is in which range. Large ops are divided into up to 64 segments, and a loss costs 6 of
        them at most. It adopts the epoch that the op was ended in. TooFewPeersError: nobody was left to end it with. After an
        error, the ranges of the error's `contributors` that have peers hold the result; all others, in place, the input.

        With `residual`, what quantisation in blocks takes away is added to the next reduce (see `ErrorFeedback`). ValueError: it
        has not as many elements as the tensors, is at another device, or belongs to an op in flight.

        With `group` it is of these members alone, not quantised, and `tag` is that of no other call of the group in flight.

        With `timeout` (seconds) PCCLTimeoutError ends the call, but not the operation. Tensors on the CPU are then as before the
        call, and the repeat waits on; UsageError: the repeat gives other contents.
        """
        retry = _going_on(retry, survivors)
        if group is not None:
            if (operand_descriptor, quantization_options, residual) != (None, None, None):
                raise ValueError("a reduce of a group takes no operand_descriptor, no quantization_options and no residual")
            done = self._finish_call(self._all_reduce(send, recv, op, group, tag, retry), timeout)
            return ReduceInfo(done.world_size, done.tx_bytes, done.rx_bytes, contributors=done.ranges)
        if operand_descriptor is None and quantization_options is None and residual is None and timeout is None:
            reduced = self._reduce_plain(send, recv, op, tag, retry)
            if reduced is not None:
                return reduced
        deadline = Deadline(timeout)
        arguments, buffers = _describe(send, recv, op, tag, operand_descriptor, quantization_options, retry, residual)
        running = self._begin(arguments, buffers, "pcclAllReduce", private=timeout is not None)
        with self._alone("pcclAllReduce", running.one_caller, f"the same reduce, of tag {running.tag}, of another thread"):
            try:
                self._complete(running.tag, running, deadline)
            except PCCLTimeoutError:
                running.note_input()
                raise
            info = running.info()
            plain = running.is_plain
        self._forget(running.tag, running, spare=plain)
        return info

    def all_reduce_async(
        self,
        send: Tensor,
        recv: Tensor | None = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        retry: bool = False,
        residual: ErrorFeedback | None = None,
        survivors: bool | None = None,
        copy: bool = True,
    ) -> AsyncReduceHandle:
        """Launches `all_reduce` and returns at once.

        Tensors on the CPU are copied: `send` here, and the result into `recv` where its end is seen, as by the handle's `wait`.
        So the result is that of the values at launch on all members, whatever the program does with `send` meanwhile. Both
        copies take memory until then: twice the tensor, or once if `retry` is given and the reduce is in place.

        With `copy=False`, which is faster for large tensors, and on a GPU both tensors belong to the operation until its end is
        seen. `residual` always does, and changes there. A program that writes to them, frees or replaces them meanwhile has a
        wrong result or crashes, and the others may have different results.

        Errors of the launch are raised here: TooFewPeersError when alone, UsageError for a tag that is in flight. The loss of
        a member is reported by the handle; with `retry` it is none (see `all_reduce`). UsageError of the handle: the memory of
        `recv` was freed, resized or replaced meanwhile.
        """
        retry = _going_on(retry, survivors)
        arguments, buffers = _describe(send, recv, op, tag, operand_descriptor, quantization_options, retry, residual)
        self._reaper.start()
        launched = self._begin(arguments, buffers, "pcclAllReduceAsync", private=copy)
        with self._alone("pcclAllReduceAsync", launched.one_caller, f"the same reduce, of tag {launched.tag}, of another thread"):
            handle = AsyncReduceHandle(self, self._handle, launched)
            if launched.begin(self._handle) != SUCCESS:
                self._forget(launched.tag, launched)
                launched.check()
            self._reaper.watch(handle, launched)
        self._forget(launched.tag, launched)
        return handle

    def cancel(self, tag: int | None = 0, *, timeout: float | None = None) -> bool:
        """Ends the operation in flight with this tag on all members alike, and waits for its end.

        It is an `all_reduce_async`, or a call that a timeout or Ctrl-C cut short; with None a collective without a tag. True:
        every member gets OperationCancelledError, also one that calls it later; inputs are as at launch and the tag is free.
        False: it had succeeded, and the result is in its tensor. Any other end raises its error. UsageError: no operation of
        this member has the tag. `timeout` in seconds: PCCLTimeoutError. Other operations in flight are redone.
        """
        deadline = Deadline(timeout)
        op = self._unfinished.get(tag)
        if not isinstance(op, Op):
            op = next((one for one in list(self._live_ops) if isinstance(one, Op) and one.tag == tag), None)
        if op is not None:
            return self._cancel(op, deadline)
        found = [(key, handle) for key, handle in list(self._cut_short.items()) if handle.tag == tag]
        if not found:
            text = f"no operation of this member with tag {tag} is in flight: use cancel() of its handle, if it has one"
            raise error_for(INVALID_USAGE, "pcclCancel", text)
        cancelled = [self._cancel_named(key, handle, deadline) for key, handle in found]
        return any(cancelled)

    def _cancel(self, op: Op, deadline: Deadline) -> bool:
        handle = None if op.dropped is None else op.dropped()
        if handle is not None:
            return handle.cancel(timeout=deadline.remaining())
        with self._alone("pcclCancel", op.one_caller, f"the reduce of tag {op.tag}, of another thread"):
            request_cancel(self._handle, op)
            result = op.wait(self._handle, deadline)
            if result not in (SUCCESS, Result.CANCELLED.value):
                op.check()
        self._forget(op.tag, op)
        return result != SUCCESS

    def _cancel_named(self, key: tuple[Any, ...], handle: CollectiveHandle, deadline: Deadline) -> bool:
        cancelled = handle.cancel(deadline.remaining())
        self._cut_short.pop(key, None)
        return cancelled

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4, timeout: float | None = None
    ) -> ReduceInfo:
        """Reduces all with `retry` (see `all_reduce`): a loss costs what was not complete, which is redone among the survivors.

        At most `max_in_flight` run at once. TooFewPeersError: alone, before or after. The info adds up the bytes of all; its
        world size is that of the group at the end. Who is in which range of which op: `get_contributors(tag)`. With `timeout`
        as `all_reduce`.
        """
        deadline = Deadline(timeout)
        wanted = list(descriptors)
        for descriptor in wanted:
            require_kind("each descriptor", descriptor, ReduceOpDescriptor)
        key = (max_in_flight, *map(op_arguments, wanted))
        multi = self._unfinished.get(key)
        if isinstance(multi, Multi):
            multi.check_input()
        else:
            pool = None if timeout is None else self._pool
            multi = self._unfinished[key] = Multi(self._pointer, wanted, max_in_flight, pool=pool)
        with self._alone(multi.name, multi.one_caller, "the same call of another thread"):
            try:
                self._complete(key, multi, deadline)
            except PCCLTimeoutError:
                multi.note_input()
                raise
            info = reduce_info(multi.c.info)
        self._forget(key, multi)
        return info

    def get_contributors(self, tag: int) -> tuple[Contributors, ...]:
        """Who is in the op of `tag` that has ended last among those with `retry`; empty when there is none."""
        return contributors(self._handle, tag)

    def diagnose(self, *, timeout: float = 3.0) -> Diagnosis:
        """Who or what makes ops slow, with evidence, and all that the members have told in the last seconds of ops.

        Asks the master, which has `timeout` seconds to answer; may be called while ops are under way, from any thread.
        ConnectionFailedError: no master answers. UsageError: not connected.
        """
        return diagnose(self._handle, milliseconds("timeout", timeout, 0.001, 3600))

    def links(self) -> tuple[Link, ...]:
        """What the connections to each other member of the group are like, by rank; empty: this peer is alone.

        Asks nobody but the kernel; may be called while ops are under way, from any thread. UsageError: not connected.
        ConnectionFailedError: the communicator is dead.
        """
        return links_of(self._handle)

    @property
    def uuid(self) -> UUID:
        """What `contributors` call this peer. Every connection gives a new one; all 0 before the first."""
        out = _ffi.new("pcclRankUuid_t *")
        call(self._handle, "pccl_ext_comm_uuid", out)
        return UUID(bytes=bytes(out.data))

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

    # ---- collectives over groups ----

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
        return Group(self, members)

    def launch(
        self,
        kind: Collective,
        *,
        group: Group,
        tag: int,
        send: int = 0,
        recv: int = 0,
        dtype: DataType = DataType.UINT8,
        count: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        survivors: bool = False,
        stream: int = 0,
        keep: object = None,
    ) -> CollectiveOp:
        """Launches a collective on memory at the addresses `send` and `recv` (`pcclCollectiveAsync`), and returns at once.

        `keep` is held until the op has ended. Of memory at a GPU, the op comes after what the stream of this number has had,
        a CUstream; 0: the legacy default stream. UsageError: the call is wrong, the tag is in flight, or the stream captures a
        CUDA graph.
        """
        collective = self._prepare(
            kind,
            group=group,
            tag=tag,
            send=send,
            recv=recv,
            dtype=dtype,
            count=count,
            op=op,
            root=root,
            send_counts=send_counts,
            recv_counts=recv_counts,
            survivors=survivors,
            stream=stream,
            keep=keep,
        )
        collective.launch()
        return collective

    def _prepare(self, kind: Collective, **arguments: Any) -> CollectiveOp:
        """One of these arguments that is not launched yet."""
        return CollectiveOp(self, self._handle, self._live_ops, self._pointer, kind, **arguments)

    def posted(self, tag: int, member: UUID) -> bool:
        """Whether that member has launched an op of this tag that was not launched here: for a receive from any source."""
        return has_posted(self._handle, tag, member)

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
        try:
            if self._recovery_ms is not None:
                PCCLError.check(_C.pccl_ext_comm_set_recovery(pointer, self._recovery_ms), "pcclCreateCommunicator")
            if self._name is not None:
                PCCLError.check(_C.pccl_ext_comm_set_name(pointer, self._name), "pcclCreateCommunicator")
        except BaseException:
            _C.pcclDestroyCommunicator(pointer)
            raise
        return pointer

    def _adopt(self, pointer: Any, ip: IP | None) -> None:
        """Takes a new C communicator as the one in use. C takes addresses only, so each address tried has its own."""
        self._pointer = pointer
        self._ip = ip
        self._handle = NativeHandle("communicator", pointer, _C.pcclDestroyCommunicator, functools.partial(stop, self._live_ops))
        self._events = Events(self._handle)
        self._reaper = Reaper(self._handle, self._unfinished)

    def _attempt(self, deadline: Deadline, join_only: bool) -> None:
        """One attempt over all addresses. ConnectError: it may be repeated; any other PCCLError: it may not."""
        if self._connected or self._handle.closed or "pcclConnect" in self._unfinished:
            self._connect_once(deadline)  # on the object that is there
            return
        if len(self._endpoints) > 1:
            self._attempt_list(deadline, join_only)
            return
        addresses = _resolve(self._endpoint, deadline)
        for position, ip in enumerate(addresses):
            if ip != self._ip:
                fresh = self._create(ip)
                self._handle.close()
                self._adopt(fresh, ip)
            try:
                self._set_join_only(join_only)
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
                found += [(ip, endpoint.port) for ip in _resolve(endpoint, deadline)]
            except ConnectError as error:  # a standby whose name is not known today
                failure = error
        if failure is not None and not found:
            raise failure
        masters = fill_socket_addresses(found[:MASTERS_MAX])
        with self._handle as pointer:
            PCCLError.check(_C.pccl_ext_comm_set_masters(pointer, masters, len(masters)), "pcclConnect")
        self._set_join_only(join_only)
        self._connect_once(deadline)

    def _set_join_only(self, join_only: bool) -> None:
        call(self._handle, "pccl_ext_comm_set_join_only", join_only, name="pcclConnect")

    def _connect_once(self, deadline: Deadline) -> None:
        try:
            ticket = self._finish("pcclConnect", "pccl_begin_connect", deadline=deadline)
        except PCCLTimeoutError as error:
            waits = self._unfinished["pcclConnect"].waits_for()
            waits = waits or "not accepted yet: newcomers wait until all accepted peers call update_topology; "
            error.detail = f"{waits}connect again to wait on"
            raise
        except PCCLError as error:
            if error.result in (Result.MASTER_CONNECTION_FAILED, Result.RANK_CONNECTION_FAILED, Result.INTERNAL_ERROR):
                raise ConnectError(error.result, "pcclConnect", error.detail) from None
            raise
        self._connected = True
        self._tags.restart()
        self._forget("pcclConnect", ticket)

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
        with self._alone(name, *alone):
            ticket = self._finish(name, begin, deadline=Deadline(timeout))
            value: int = ticket.c.value
            if name == "pcclUpdateTopology":
                self._tags.restart()
        self._forget(name, ticket)
        return value

    def _forget(self, key: object, ticket: Ticket, *, spare: bool = False) -> None:
        """Until here a call that is repeated after a signal gives the result that there is, and makes no second vote.

        `spare`: the ticket is a plain op that has succeeded, and is kept for the next one.
        """
        if self._unfinished.get(key) is ticket:  # else another thread has closed the communicator, or has the tag
            del self._unfinished[key]  # neither `pop` nor, below, `append`, as whose result a signal could come
            if spare and not self._spares[SPARES_MAX - 1 :]:
                self._spares[:0] = (ticket,)

    def _begin(self, arguments: OpArguments, buffers: Buffers, name: str, *, private: bool) -> Op:
        """The op of a call with these arguments that was cut short, or else a new one.

        From before its launch on it is kept for a repetition of the call, wherever a signal ends this one. With `private` a
        new op works on memory of its own, since the program may get its tensors back before the op has ended.
        UsageError: the input changed since the call was cut short.
        """
        op = self._unfinished.get(arguments[2][2])
        if isinstance(op, Op) and op.arguments == arguments:
            op.check_input()
            return op
        residual = arguments[5]
        if residual is not None:
            residual.check_idle()
        fresh = Op(self._pointer, arguments, buffers, self._live_ops, name, pool=self._pool if private else None)
        if op is None or not op.in_flight:  # else the tag is in flight, and the launch is refused
            self._unfinished[fresh.tag] = fresh
        return fresh

    def _reduce_plain(self, send: Tensor, recv: Tensor | None, op: ReduceOp | str, tag: int, retry: bool) -> ReduceInfo | None:
        """`all_reduce` without other options, in few steps: Python would take longer than the network to reduce a small tensor.

        None: it was not made, or its end is not known, or is no success; the call has to be made in full, which takes it up.
        """
        source = plain_memory(send, "send")
        target = source if recv is None or recv is send else plain_memory(recv, "recv")
        if source is None or target is None or source[1:] != target[1:] or type(tag) is not int or tag >> 64:
            return None
        plain = target[0], source, ReduceOp.of(op), tag, retry
        handle = self._handle
        try:
            running: Op = self._spares.pop()
        except IndexError:
            return None
        running.renew(handle.pointer, plain, (send, send if recv is None else recv))
        running.one_caller.acquire()  # nobody else has the op before it is published
        try:
            if self._unfinished.setdefault(tag, running) is not running:
                return None
            info = running.run(handle)
            if info is None:
                return None
        finally:
            running.one_caller.release()
        self._forget(tag, running, spare=True)
        return info

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
            ways.append(f"wait for the handle of each {' and '.join(collectives)}, or call it again if its wait was cut short")
        if kept:
            ways.append(f"call the reduce with tag {_numbers(kept)}, whose wait was cut short, again with the same arguments")
        if any(isinstance(ticket, Multi) and not ticket.one_caller.locked() for ticket in unfinished):
            ways.append("call all_reduce_multiple_with_retry, whose wait was cut short, again with the same arguments")
        return f"ops are not awaited: {'; '.join(ways)}" if ways else ""

    def _read_attribute(self, attribute: int) -> int:
        out = _ffi.new("int *")
        call(self._handle, "pcclGetAttribute", attribute, out)
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


def _resolve(endpoint: Endpoint, deadline: Deadline) -> list[IP]:
    try:
        return resolve(endpoint, deadline)
    except TimeoutError as error:
        raise PCCLTimeoutError(Result.TIMED_OUT, "pcclConnect", str(error)) from None
    except OSError as error:
        text = f"the name {endpoint.host} cannot be resolved: {error.strerror or error}"
        raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", text) from None


def _numbers(some: list[int]) -> str:
    shown = ", ".join(map(str, some[:SHOWN_TAGS]))
    return f"{shown} and {len(some) - SHOWN_TAGS} more" if len(some) > SHOWN_TAGS else shown


def _going_on(retry: bool, survivors: bool | None) -> bool:
    """Whether an all-reduce goes on without lost members, by either of its two names."""
    if retry and survivors is False:
        raise ValueError("retry=True and survivors=False contradict each other: give survivors alone")
    return retry or bool(survivors)


def _describe(
    send: Tensor,
    recv: Tensor | None,
    op: ReduceOp | str,
    tag: int,
    operand_descriptor: ReduceOperandDescriptor | None,
    quantization_options: QuantizationOptions | None,
    retry: bool,
    residual: ErrorFeedback | None,
) -> tuple[OpArguments, Buffers]:
    """A reduce of two tensors, after all checks that Python can make, and its memory."""
    buffers = reduce_buffers(send, send if recv is None else recv)
    op = ReduceOp.of(op)
    tag = whole_number("tag", tag, 64)
    if operand_descriptor is not None:
        require_kind("operand_descriptor", operand_descriptor, ReduceOperandDescriptor)
        check_fits(buffers, buffers.numel, operand_descriptor.datatype)
    if quantization_options is not None:
        require_kind("quantization_options", quantization_options, QuantizationOptions)
    operand = operand_descriptor or ReduceOperandDescriptor(buffers.dtype)
    quantization = quantization_options or NOT_QUANTISED
    numbers = reduce_numbers(buffers.numel, op, tag, operand, quantization)
    if residual is not None:
        require_kind("residual", residual, ErrorFeedback)
        _check_residual(residual, buffers, quantization)
    return (buffers.send, buffers.recv, numbers, retry, quantization.blocks, residual), buffers


def _check_residual(residual: ErrorFeedback, buffers: Buffers, quantization: QuantizationOptions) -> None:
    if not quantization.algorithm.is_blockwise:
        raise ValueError(f"residual needs quantization_options with a BLOCK_* algorithm, not {quantization.algorithm.name}")
    memory = residual.memory()[0]
    if memory.numel != buffers.numel:
        raise ValueError(f"residual has {memory.numel} elements and the tensors {buffers.numel}: they must be alike")
    if memory.device is not buffers.device:
        text = f"residual is on {memory.device.name} and the tensors on {buffers.device.name}: they must be on one device"
        raise ValueError(text)


publish(globals())
