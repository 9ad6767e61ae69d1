"""A peer's part in a run."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pccl._core.calls import INVALID_USAGE, SUCCESS, TIMED_OUT, Deadline, milliseconds, whole_number
from pccl._core.enums import ReduceOp, SharedStateSyncStrategy
from pccl._core.errors import PCCLTimeoutError, Result, TooFewPeersError, error_for
from pccl._core.groups import Group
from pccl._core.results import Contributors, ParityInfo, ReduceInfo
from pccl._core.tensors import Buffers, plain_memory, reduce_buffers, require_kind
from pccl._core.types import (
    NOT_QUANTISED,
    QuantizationOptions,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    check_fits,
    reduce_numbers,
)
from pccl._exports import publish
from pccl._ops.feedback import ErrorFeedback
from pccl._ops.operations import contributors, request_cancel
from pccl._ops.reduces import AsyncReduceHandle, Multi, Op, OpArguments, op_arguments, reduce_info
from pccl._peer.named import CollectiveHandle, NamedCollectives
from pccl._peer.shared_state import SharedState, SharedStateSyncInfo, SyncProgress, sync_info, sync_report, watcher
from pccl._watch.diagnosis import diagnose
from pccl._watch.links import Link, links_of
from pccl._watch.reports import Diagnosis

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pccl.state._snapshots.config import Restored, Snapshots

    Tensor = torch.Tensor | np.ndarray[Any, Any]

SPARES_MAX = 4
"""Of ops that have ended: so many threads may reduce at a time and find one."""


class Communicator(NamedCollectives):
    """A peer of the run whose master is at `address`: `host:port`, `1.2.3.4:port` or `[ipv6]:port`, or a list of these with
    commas, for a run with standby masters. None: the one that the environment variable PCCL_MASTER names.

    `host:port/name`, or a list with `/name` behind it, is the run of this name among those that the master serves; the name has 1
    to 64 letters, digits, dots, hyphens and underscores.

    When the master is lost, everything waits for it, or for the next one of the list, to take the run up; nothing else is
    noticed of it. After `master_recovery_limit` seconds (default 60; 0 = at once) without one the communicator is dead.

    Peers of the same `peer_group` reduce and share state with each other; `p2p_connection_pool_size` is the number of lanes
    to each ring neighbour, 0 = the library decides: four, and more to one that is far away. Nothing touches the network
    before `connect`. In a `with` statement it is closed at the end, and connects not by itself.

    `min_members` and `max_members` are how many members a run has, all groups together; 0: no limit. With fewer,
    `are_peers_pending` is True and `update_topology` waits for more, at most for `min_members_timeout` seconds. Further newcomers
    wait in `connect` as spares. All peers of a run give the same; the master refuses others. None: the environment variables
    PCCL_MIN_MEMBERS, PCCL_MAX_MEMBERS and PCCL_MIN_MEMBERS_TIMEOUT_S, or 0, 0 and 600.

    `name` is what logs, errors and tables call this peer, beside its uuid: 1 to 63 bytes of printable UTF-8 (ValueError). None:
    the environment variable PCCL_PEER_NAME, or the host name. Peers may have the same name.

    `interface` names up to four network cards of this host, as "eth0,eth1" or a sequence, over which connections are spread
    (docs/addresses.md). None: the environment variable PCCL_INTERFACE, or the system's choice. PCCLError (INVALID_ARGUMENT): the
    host has no such card with an address.

    `keys` is a file that `pccl keys` wrote, for peers or for masters; all connections are then encrypted, and only processes with
    keys of the same run are connected. None: the file that the environment variable PCCL_KEYS names. PCCLError
    (INVALID_ARGUMENT): the file cannot be used. A file of one run (`pccl keys --run`) also names that run, so the
    address need not; `connect` fails with INVALID_ARGUMENT if the address names another one.

    Without keys nothing is encrypted, and `connect` takes masters of this host only, at loopback; one at another address is
    PCCLError (INVALID_ARGUMENT), which nothing repeats. Of a host name only addresses of loopback are used. `insecure`, or the
    environment variable PCCL_INSECURE=1, permits every address. It has no effect with keys.

    `cert`, `key` and `ca` are files in PEM that take the place of `keys`: a certificate for a peer, its private key, and the
    authorities that are trusted (docs/security.md#use-certificates). They are read again when they have changed. None: the
    files that PCCL_CERT, PCCL_KEY and PCCL_CA name. ValueError: one of them without the others, or with `keys`.

    `events` is the path of a file for the last events of this peer, or of a directory, as of PCCL_EVENTS (docs/events.md);
    False: none are kept.

    `spans` makes OpenTelemetry spans of operations, calls and steps (docs/events.md#traces); None: if the environment asks for
    traces. ValueError: True, and OpenTelemetry is not installed.

    Every method may be called from any thread and raises PCCLError with the code of the C library. Methods that wait for
    others wait as long as those live; with `timeout` (seconds) they raise PCCLTimeoutError instead. After that, or after
    Ctrl-C, what was waited for goes on: the same call, repeated, waits on for it.
    """

    _parity: Any = None
    """What is kept of parity checks."""

    _synced = 0
    """The revision of the last sync."""

    def _tear_down(self) -> None:
        super()._tear_down()
        self._spares.clear()
        self._parity = None
        vaults = list(self._vaults.items())
        if sys.is_finalizing():
            return  # their threads do not run any more
        if any(vault.works_in(threading.current_thread()) for _, vault in vaults):
            return  # its own failure: the program's call of `close` frees them
        for topic, vault in vaults:
            if vault.release():
                self._vaults.pop(topic, None)

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

        `strategy` is what this member offers and takes: by default the content that most hold; RECEIVE_ONLY; SEND_ONLY.
        `progress` is called about ten times a second while it takes its time. INVALID_ARGUMENT: a tensor was replaced since.
        After an error the revision is as before; tensors that were to be received are unspecified, all others unchanged.
        Waits first for snapshots of this communicator that are under way.

        ValueError: a state `from_module` differs from that of other peers in its model, optimizer or extra values, in the first
        sync on all alike, and later at a newcomer, which is closed then.
        """
        require_kind("shared_state", shared_state, SharedState)
        require_kind("strategy", strategy, SharedStateSyncStrategy)
        name = "pcclSynchronizeSharedState"
        deadline = Deadline(timeout)
        self._settle_snapshots(deadline)
        if shared_state._terms is not None:
            _meeting().meet(self, shared_state, shared_state._terms(), deadline.remaining())
        with self._alone(name):
            key = (name, id(shared_state), strategy)
            keep = (shared_state, shared_state.revision)
            begun = self._unfinished.get(key)
            if begun is None or not begun.c.kind:
                shared_state._collect(name)
            elif begun.in_flight and begun.keep != keep:
                text = "a sync of another revision of this state is in flight; restore that revision and call again"
                raise error_for(INVALID_USAGE, name, text)
            arguments = (shared_state.to_c(), strategy.value, shared_state._read_only())
            watch = watcher(self._handle, progress)
            try:
                done = self._finish(name, "pccl_begin_sync", *arguments, deadline=deadline, key=key, keep=keep, watch=watch)
            except BaseException:
                shared_state._forget_freed()
                raise
            for other in list(self._unfinished):
                if isinstance(other, tuple) and other[0] == name and other != key:
                    self._unfinished.pop(other, None)  # whose round this call has taken up
            moved = sync_info(sync_report(self._handle))
            shared_state.revision = self._synced = done.c.value
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
        memory. Elements are what `operand_descriptor` says, by default the tensors' dtype, and travel as `quantization_options`
        say, by default unquantised. A parameter that requires a gradient is written like any other tensor, unseen by autograd.

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
            done = self._all_reduce(send, recv, op=op, group=group, tag=tag, survivors=retry, timeout=timeout)
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
        if plain:
            self._retire(running)
        else:
            self._forget(running.tag, running)
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
            handle = AsyncReduceHandle(self, self._events, self._handle, launched)
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
            text = f"no operation with tag {tag} is in flight on this member; use cancel() of the handle, if there is one"
            raise error_for(INVALID_USAGE, "pcclCancel", text)
        cancelled = [self._cancel_named(key, handle, deadline) for key, handle in found]
        return any(cancelled)

    def _cancel(self, op: Op, deadline: Deadline) -> bool:
        handle: AsyncReduceHandle | None = None if op.dropped is None else op.dropped()
        if handle is not None:
            return handle.cancel(timeout=deadline.remaining())
        with self._alone("pcclCancel", op.one_caller, f"the reduce of tag {op.tag}, of another thread"):
            op.left_alone = True
            try:
                request_cancel(self._handle, op)
                result = op.wait(self._handle, deadline)
            finally:
                op.left_alone = False
            if result == TIMED_OUT:
                text = f"the operation with tag {op.tag} is still in flight; it is cancelled later"
                raise PCCLTimeoutError(Result.TIMED_OUT, "pcclCancel", text)
            if result not in (SUCCESS, Result.CANCELLED.value):
                op.fail(result)
        self._forget(op.tag, op)
        return bool(result == Result.CANCELLED.value)

    def _cancel_named(self, key: tuple[Any, ...], handle: CollectiveHandle, deadline: Deadline) -> bool:
        cancelled = handle.cancel(deadline.remaining())
        self._cut_short.pop(key, None)
        return cancelled

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4, timeout: float | None = None
    ) -> ReduceInfo:
        """Reduces all `descriptors` with `retry` (see `all_reduce`): after a loss the survivors redo what was not complete.

        At most `max_in_flight` run at once. TooFewPeersError: alone, before or after. The info adds up the bytes of all; its
        world size is that of the group at the end. Who is in which range of which op: `get_contributors(tag)`. With `timeout`
        as `all_reduce`.
        """
        deadline = Deadline(timeout)
        wanted = list(descriptors)
        for descriptor in wanted:
            require_kind("each descriptor", descriptor, ReduceOpDescriptor)
        max_in_flight = min(max_in_flight, len(wanted) or 1)  # C has fewer bits for it
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
        """Who is in the op of `tag` that has ended last among those with `retry`; empty when there is none.

        TypeError, ValueError: a tag that cannot be.
        """
        return contributors(self._handle, whole_number("tag", tag, 64))

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

    # ---- snapshots ----

    def snapshot(
        self,
        state: Mapping[str, Tensor],
        *,
        step: int,
        snapshots: Snapshots | None = None,
        shards: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None,
        part: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Copies the tensors of all members at one step into the memory of others, where they survive the loss of members.

        All members call it with the same `step`. It returns when this member's tensors are copied and may change; the redundancy
        is sent in the background. Then it replaces the snapshot before. `wait_for_snapshot` tells whether it is complete; one
        that is not never counts. Take another one after members were lost or have come: until then fewer losses are survived.

        `state` has tensors and arrays by name. Without `shards` they belong to this member, and together are its part of the
        snapshot. `part` is the name of this part, by default the member's uuid; give a name that a restarted process gives again.
        With `shards` they are parts of whole tensors that all members have: it gives for each name the whole shape and the offset
        of the own part. Parts may be the same at several members; otherwise they must not overlap.

        `snapshots` is how many losses are survived: a `pccl.state.Snapshots`, by default of one copy, the same in all calls; its
        `every` has no effect here. `timeout` is for each message, and that of the first call holds.

        PCCLTimeoutError: a member has not called it. After that or Ctrl-C repeat the call with the same `step` to wait on.
        UsageError: a restore, or the snapshot of another step, was cut short, and the others wait for it.

        ProtectionError on all: the last three snapshots have failed (`Snapshots.on_failure`).
        TypeError, ValueError on this member: the state cannot be kept; the snapshot fails on the others. ValueError on all:
        members give different copies or codes. RuntimeError: torch is missing.
        """
        arguments = {"step": step, "snapshots": snapshots, "shards": shards, "part": part, "timeout": timeout}
        self._note_protections(**_snapshots().snapshot(self, state, **arguments))

    def wait_for_snapshot(self) -> bool:
        """Waits for the end of a snapshot under way. Whether the last one is complete on all members; the log says why not.

        False before the first snapshot, and after `close`.
        """
        return bool(_snapshots().wait(self))

    def restore(
        self,
        state: Mapping[str, Tensor],
        *,
        snapshots: Snapshots | None = None,
        shards: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None,
        part: str | None = None,
        timeout: float | None = None,
    ) -> Restored | None:
        """Fills the tensors of `state` from the newest snapshot that can be restored. All call it, with the same `snapshots`.

        Call it when a member was lost, or has come; newcomers call it before anything else. It takes losses into account, also
        those that happen meanwhile, and calls `update_topology` after these. None: no member has a snapshot, so a run begins.

        Without `shards` a member gets tensors of the part that it names, by default its own. One that gives no tensors takes part
        nevertheless. `parts` of the result names all parts, also those of lost members: a second call may take them. With
        `shards` the tensors are divided anew among the members, and all of them together must ask for all of each tensor.

        The result is compared with the hash that the snapshot had: of tensors that are divided always, of parts that are asked
        for as a whole. One that differs is not taken, and an older one tried.

        `pccl.state.StateLostError` on all members alike: more was lost than the redundancy bears. ValueError on all: tensors do
        not fit the snapshot. After both no tensor has changed, except where a damaged snapshot was tried. After any other error,
        such as PCCLTimeoutError, the tensors have any content, and the snapshot is as before.

        After PCCLTimeoutError, and after Ctrl-C while not all members have called it, repeat the call. Ctrl-C while members
        exchange the content cannot be repeated: close this communicator, and the others go on without it. UsageError: a snapshot
        was cut short, and the others wait for it; repeat it first.
        """
        arguments = {"snapshots": snapshots, "shards": shards, "part": part, "timeout": timeout}
        found: Restored | None = _snapshots().restore(self, state, **arguments)
        return found

    def drop_snapshots(self, *, snapshots: Snapshots | None = None) -> None:
        """Drops the snapshots that this process, and those that ended before it, have left on this host.

        Without it a restarted process finds them.
        `snapshots`: as in `snapshot`; it may be left out after the first call that had it. ValueError: they are others.
        """
        _snapshots().drop(self, snapshots)

    # ---- parity ----

    def check_parity(
        self,
        state: Any,
        *,
        policy: str = "raise",
        fraction: float = 1.0,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> ParityInfo:
        """Compares a state that all members of the peer group, or of `group`, should hold alike, bit for bit: NaNs too.

        `state` is a SharedState, a torch module, whose parameters are compared (not its buffers), or a dict of tensors and arrays
        by name, on the CPU or a GPU. All members call it at the same place, with the same entries in the same order and the same
        arguments; it waits for them. It hashes the state, and sends 96 bytes; more only where hashes differ. Nothing may write to
        the state meanwhile, but another thread may call it beside a forward and backward pass. One call of a group at a time.
        Needs torch.

        `fraction`: each call compares the next part of the bytes, such as 0.1: ten calls in sequence compare all, whoever joins
        meanwhile. If the part differs, the call compares all.

        If entries differ, the members that hold the same as more than half of all are the majority, and `policy` decides:

        - "raise": ParityError on all members alike.
        - "repair": the others receive the entries that differ from a member of the majority. ParityError on all if they differ
          again after three repairs.
        - "expel": the others close this communicator and raise ParityError; the majority goes on without them.

        Without a majority every policy raises ParityError on all. A member that dies is left out, and the rest is compared.
        UsageError on all members: their entries or policies differ. TypeError, ValueError, AssertionError: `state` cannot be
        compared; the others wait then, so close the communicator. After an error the state is unchanged, but entries of a member
        of the minority may be anything after a repair that was cut short.

        With `timeout` (seconds) PCCLTimeoutError: some member has not called it. The check goes on: repeat the call, and do not
        change the state before.
        """
        found: ParityInfo = _parity().check_parity(self, state, policy, fraction=fraction, group=group, timeout=timeout)
        return found

    def replay(
        self, compute: Callable[..., Any], inputs: Sequence[Tensor], *, root: int = 0, policy: str = "raise"
    ) -> ParityInfo:
        """Lets every member compute the same, and compares the results as `check_parity` does, with its `policy`.

        `compute(*inputs)` gets copies of the inputs of the member of rank `root`; the others pass tensors of the same shapes.
        It returns a tensor or an array, or several in a list or a dict, such as the loss and the gradients of one micro-batch.
        It has to be deterministic: with the same parameters, seeds, kernels and kinds of processor, and in torch under
        `torch.use_deterministic_algorithms(True)`. Then a member that differs from a majority computes wrongly.

        Raises what `check_parity` and `compute` raise, and PeerLostError if the root was lost. If `compute` raises on some
        members only, the others get UsageError.
        """
        found: ParityInfo = _parity().replay(self, compute, inputs, root, policy)
        return found

    # ---- inside ----

    def _adopt(self, pointer: Any, ip: Any) -> None:
        super()._adopt(pointer, ip)
        self._spares: list[Op] = []  # plain ops that have succeeded
        self._parity = None

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
        if recv is not None and type(recv) is not type(send):
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
        self._retire(running)
        return info

    def _retire(self, op: Op) -> None:
        """As `_forget`, of a plain op that has succeeded: it is kept for the next one."""
        try:
            if self._unfinished.get(op.tag) is op:
                del self._unfinished[op.tag]
                if not self._spares[SPARES_MAX - 1 :]:
                    self._spares[:0] = (op,)  # not `append`, as whose result a signal could come
        except KeyError:  # another thread has closed the communicator just now
            pass


def _snapshots() -> Any:
    """What needs torch, and is above this module."""
    return importlib.import_module("pccl.state._snapshots.tensors")


def _meeting() -> Any:
    """What needs torch, and is above this module."""
    return importlib.import_module("pccl.state._meeting")


def _parity() -> Any:
    """What needs torch, and is above this module."""
    return importlib.import_module("pccl.state._parity")


def roll(
    comm: Communicator, values: Any, tag: int, timeout: float | None = None, *, op: ReduceOp = ReduceOp.SUM
) -> frozenset[UUID]:
    """The members of the peer group who live, the same on all of them: those that one reduce has among its contributors.

    What a peer has heard of epochs may differ from that where members were lost together with a master. The reduce adopts the
    losses. `values`, a tensor too small to be divided, is replaced by the result of `op`. After PCCLTimeoutError or Ctrl-C call
    it again with the same tensor: `pccl._ops.journal` keeps that for callers that make a new one.
    """
    try:
        found = comm.all_reduce(values, op=op, tag=tag, retry=True, timeout=timeout).contributors
    except TooFewPeersError:
        found = ()
    return found[0].peers if found else frozenset([comm.uuid])


def _going_on(retry: bool, survivors: bool | None) -> bool:
    """Whether an all-reduce goes on without lost members, by either of its two names."""
    if retry and survivors is False:
        raise ValueError("retry=True and survivors=False contradict each other; pass only survivors")
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
        raise ValueError(f"residual has {memory.numel} elements and the tensors {buffers.numel}; the sizes must be equal")
    if memory.device is not buffers.device:
        text = f"residual is on {memory.device.name} and the tensors on {buffers.device.name}; they must be on one device"
        raise ValueError(text)


publish(globals())
