"""Who or what makes the ops of a run slow: what `Communicator.diagnose` and `pccl top` show (docs/diagnosis.md)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from uuid import UUID

from pccl._address import Endpoint, fill_socket_address, permitted, resolve
from pccl._calls import SLICE_MS, TIMED_OUT, Deadline, NativeHandle, call
from pccl._errors import ConnectError, PCCLError, Result
from pccl._findings import find
from pccl._loader import _C, _ffi
from pccl._names import text_of
from pccl._reports import JOINING, Diagnosis, EdgeReport, JoinerReport, MemberReport


def diagnose_run(endpoint: Endpoint, timeout: float = 3.0, keys: str | bytes | None = None, insecure: bool = False) -> Diagnosis:
    """Asks the master at this address about its run. No peers: there is none. ConnectError: no master answers there.

    `keys` is a file of keys, or what `credentials` returns; None: what the environment names, if anything. PCCLError
    (INVALID_ARGUMENT): it cannot be used, or there are no keys, the master is beyond loopback, and neither `insecure` nor
    PCCL_INSECURE=1 permits that.
    """
    deadline = Deadline(timeout)
    try:
        addresses = resolve(endpoint, deadline)
    except OSError as error:
        text = f"the name {endpoint.host} cannot be resolved: {error.strerror or error}"
        raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclDiagnose", text) from None
    text = ""
    path = _ffi.NULL if keys is None else os.fsencode(keys)
    for ip in permitted(endpoint, addresses, path, insecure, "pcclDiagnose"):
        address = _ffi.new("ccoip_socket_address_t *")
        fill_socket_address(address, ip, endpoint.port)
        query = _ffi.new("struct pccl_status_query **")
        arguments = address, endpoint.run.encode(), path, insecure, int(timeout * 1000), query
        PCCLError.check(_C.pccl_ext_diagnose_begin_run(*arguments), "pcclDiagnose")
        try:
            return _await(query[0])
        except PCCLError as error:
            said, colon, why = error.detail.partition(": ")
            text = f"{said} at {endpoint}: {why}" if colon else f"no master answers at {endpoint}: {said}"
    raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclDiagnose", text)


def remove_member(
    endpoint: Endpoint, member: UUID, *, at_update: bool, keys: str | bytes | None = None, timeout: float = 3.0
) -> None:
    """Has the master at this address take a member out: at its next update, as after `leave`, or at once, as if it had died.

    `keys` is a file of keys for masters, or what `credentials` returns; None: what the environment names. PCCLError
    (INVALID_ARGUMENT): these are no keys of masters; (INVALID_USAGE): the master refuses, or there is no such member.
    ConnectError: no master answers there.
    """
    arguments = *_request("remove_member", endpoint, member, keys, timeout), at_update, int(timeout * 1000)
    PCCLError.check(_C.pccl_ext_remove_member(*arguments), "remove_member")


def stacks_of(endpoint: Endpoint, member: UUID, keys: str | bytes | None = None, timeout: float = 5.0) -> str:
    """The Python stacks of all threads of a member, as text without control characters. As `remove_member`.

    PCCLTimeoutError: the member does not answer in `timeout` seconds.
    """
    room = _ffi.new("char[]", STACKS_BYTES)
    arguments = *_request("stacks", endpoint, member, keys, timeout), int(timeout * 1000), room, STACKS_BYTES
    PCCLError.check(_C.pccl_ext_member_stacks(*arguments), "stacks")
    text = _ffi.string(room).decode("utf-8", "replace")
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def _request(name: str, endpoint: Endpoint, member: UUID, keys: str | bytes | None, timeout: float) -> tuple[Any, ...]:
    """The arguments with which an operator's request begins."""
    try:
        ip = resolve(endpoint, Deadline(timeout))[0]
    except OSError as error:
        raise ConnectError(Result.MASTER_CONNECTION_FAILED, name, f"{endpoint.host}: {error}") from None
    address = _ffi.new("ccoip_socket_address_t *")
    fill_socket_address(address, ip, endpoint.port)
    return address, endpoint.run.encode(), _ffi.NULL if keys is None else os.fsencode(keys), member.bytes


STACKS_BYTES = 16 * 1024 + 1
"""Of a member, with a zero."""

RUNS_BYTES = 8192
"""Of the list of a master's runs."""


def runs_at(endpoint: Endpoint, timeout: float = 3.0, keys: str | bytes | None = None, insecure: bool = False) -> dict[str, int]:
    """Asks the master at this address for its runs: the number of peers by name, "" for the run without a name.

    A master names none to a process without its keys on another host or of another user. Otherwise as `diagnose_run`.
    """
    address, text = _ffi.new("ccoip_socket_address_t *"), _ffi.new("char[]", RUNS_BYTES)
    path = _ffi.NULL if keys is None else os.fsencode(keys)
    try:
        ip = permitted(endpoint, resolve(endpoint, Deadline(timeout)), path, insecure, "pcclDiagnose")[0]
    except OSError as error:
        raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclDiagnose", f"{endpoint.host}: {error}") from None
    fill_socket_address(address, ip, endpoint.port)
    arguments = address, path, insecure, int(timeout * 1000), text, RUNS_BYTES
    PCCLError.check(_C.pccl_ext_master_runs(*arguments), "pcclDiagnose")
    lines = _ffi.string(text).decode().splitlines()
    return {name: int(peers) for peers, _, name in (line.partition(" ") for line in lines)}


def diagnose(handle: NativeHandle, limit_ms: int) -> Diagnosis:
    """Asks the master of a communicator's run."""
    query = _ffi.new("struct pccl_status_query **")
    call(handle, "pccl_ext_diagnose_begin", limit_ms, query, name="pcclDiagnose")
    return _await(query[0])


def _await(query: Any) -> Diagnosis:
    """Waits for the answer in slices, so that Ctrl-C works at once, and frees the question."""
    out = _ffi.new("pcclDiagnosis_t **")
    try:
        while (code := _C.pccl_ext_diagnose_wait(query, SLICE_MS, out)) == TIMED_OUT:
            pass
        PCCLError.check(code, "pcclDiagnose")
    finally:
        _C.pccl_ext_diagnose_end(query)
    return _take(out[0])


def _take(pointer: Any) -> Diagnosis:
    """Reads a `pcclDiagnosis_t`, and frees it."""
    try:
        members = tuple(_member(pointer.members[i]) for i in range(pointer.member_count))
        edges = tuple(_edge(pointer.edges[i], members) for i in range(pointer.edge_count))
        limit, counts = pointer.heartbeat_limit_s, (pointer.counts_only, pointer.peer_count, pointer.epoch)
        further = pointer.generation, pointer.votes
        for i in range(pointer.number_count):
            number = pointer.numbers[i]
            members[number.member].report[_ffi.string(number.name).decode()] = number.value
        joiners = tuple(_joiner(pointer.joiners[i]) for i in range(pointer.joiner_count))
    finally:
        _C.pcclDiagnosisFree(pointer)
    findings, begins = find(members, edges, limit)
    members = tuple(replace(member, begins_seconds=late) for member, late in zip(members, begins, strict=True))
    return Diagnosis(tuple(findings), members, edges, limit, *counts, *further, joiners)


def _uuid(uuid: Any) -> UUID:
    return UUID(bytes=bytes(_ffi.buffer(uuid.data)))


def _member(c: Any) -> MemberReport:
    return MemberReport(
        uuid=_uuid(c.uuid),
        name=text_of(c.name),
        group=c.group,
        address=_ffi.string(c.address).decode(),
        silent_seconds=c.silent_s,
        told_seconds=None if c.told_s < 0 else c.told_s,
        span_seconds=c.span_s,
        recent_seconds=c.recent_s,
        ops=c.ops,
        op_seconds=c.op_s,
        processor_seconds=c.processor_s,
        live=c.live,
        oldest_seconds=c.oldest_s,
        still_seconds=c.still_s,
        begins_seconds=0.0,
        state_revision=c.state_revision if c.synced else None,
        state_hash=f"{c.state_hash[1]:016x}{c.state_hash[0]:016x}" if any(c.state_hash) else "",
        state_replaced=c.state_replaced,
    )


def _joiner(c: Any) -> JoinerReport:
    return JoinerReport(
        uuid=_uuid(c.uuid),
        name=text_of(c.name),
        group=c.group,
        address=_ffi.string(c.address).decode(),
        does=JOINING[c.joining],
        done_bytes=c.done,
        total_bytes=c.total,
        progress_seconds=c.progress_s,
        wait_seconds=c.wait_s,
    )


def _edge(c: Any, members: tuple[MemberReport, ...]) -> EdgeReport:
    return EdgeReport(
        member=members[c.member].uuid,
        other=members[c.other].uuid,
        awaited=c.awaited,
        acked_bytes=c.acked_bytes,
        busy_seconds=c.busy_s,
        window_seconds=c.window_s,
        segments=c.segments,
        retransmits=c.retransmits,
        samples=c.samples,
        backlogged=c.backlogged,
        loaded_seconds=c.loaded_s,
        entries=c.entries,
        late_seconds=c.late_s,
        early_seconds=c.early_s,
        round_trip_seconds=c.round_trip_s,
        queue_seconds=c.queue_s,
        by_memory=c.by_memory,
        lanes=c.lanes,
        reason=_ffi.string(c.reason).decode(),
    )
