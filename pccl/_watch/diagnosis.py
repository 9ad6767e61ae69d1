"""Who or what makes the ops of a run slow: what `Communicator.diagnose` and `pccl top` show (docs/diagnosis.md)."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

from pccl._core.address import IP, Endpoint, fill_socket_addresses, permitted, resolve
from pccl._core.calls import SLICE_MS, TIMED_OUT, Deadline, NativeHandle, call
from pccl._core.errors import ConnectError, LossReason, PCCLError, Result
from pccl._core.library import _C, _ffi
from pccl._core.names import read_struct, uuid_in
from pccl._core.questions import REMOVE, RUNS, STACKS, ask, read_runs, write_remove
from pccl._watch.findings import find
from pccl._watch.reports import JOINING, DepartureReport, Diagnosis, EdgeReport, JoinerReport, MemberReport


def diagnose_run(endpoint: Endpoint, timeout: float = 3.0, keys: str | bytes | None = None, insecure: bool = False) -> Diagnosis:
    """Asks the master at this address about its run. No peers: there is none. ConnectError: no master answers there.

    `keys` is a file of keys, or what `credentials` returns; None: what the environment names, if anything. PCCLError
    (INVALID_ARGUMENT): it cannot be used, or there are no keys, the master is beyond loopback, and neither `insecure` nor
    PCCL_INSECURE=1 permits that.
    """
    found: Diagnosis = _ask(endpoint, timeout, keys, insecure, _take)
    return found


def require_master(endpoint: Endpoint, timeout: float, keys: str | bytes | None, insecure: bool) -> None:
    """As `diagnose_run`, for who only wants to know whether a master answers: reads nothing of what it tells."""
    _ask(endpoint, timeout, keys, insecure, _C.pcclDiagnosisFree)


def _ask(endpoint: Endpoint, timeout: float, keys: str | bytes | None, insecure: bool, take: Callable[[Any], Any]) -> Any:
    text = ""
    path = _path(keys)
    for ip in permitted(endpoint, _resolved(endpoint, timeout, "pcclDiagnose"), path, insecure, "pcclDiagnose"):
        query = _ffi.new("struct pccl_status_query **")
        arguments = _place(endpoint, ip), endpoint.run.encode(), path, insecure, int(timeout * 1000), query
        PCCLError.check(_C.pccl_ext_diagnose_begin_run(*arguments), "pcclDiagnose")
        try:
            return _await(query[0], take)
        except PCCLError as error:
            said, colon, why = error.detail.partition(": ")
            text = f"{said} at {endpoint}: {why}" if colon else f"no master answers at {endpoint}: {said}"
    raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclDiagnose", text)


def remove_member(
    endpoint: Endpoint, member: UUID, *, at_update: bool, by: str = "", keys: str | bytes | None = None, timeout: float = 3.0
) -> None:
    """Has the master at this address take a member out: at its next update, as after `leave`, or at once, as if it had died.

    `by`: who asks, and what for; of more than 95 bytes the beginning. The errors of the member and of the survivors tell it.
    `keys` is a file of keys for masters, or what `credentials` returns; None: what the environment names. PCCLError
    (INVALID_ARGUMENT): these are no keys of masters; (INVALID_USAGE): the master refuses, or there is no such member.
    ConnectError: no master answers there.
    """
    _request(REMOVE, "remove_member", endpoint, keys, timeout, write_remove(member.bytes, at_update, by))


def stacks_of(endpoint: Endpoint, member: UUID, keys: str | bytes | None = None, timeout: float = 5.0) -> str:
    """The Python stacks of all threads of a member, as text without control characters. As `remove_member`.

    PCCLTimeoutError: the member does not answer in `timeout` seconds.
    """
    text = _request(STACKS, "stacks", endpoint, keys, timeout, member.bytes).decode("utf-8", "replace")
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def _request(kind: int, name: str, endpoint: Endpoint, keys: str | bytes | None, timeout: float, body: bytes) -> bytes:
    """Makes an operator's request, and returns the answer."""
    ip = _resolved(endpoint, timeout, name)[0]
    return ask(kind, name, _place(endpoint, ip), endpoint.run, _path(keys), int(timeout * 1000), body=body)


def _resolved(endpoint: Endpoint, timeout: float, name: str) -> list[IP]:
    """The addresses of a master. ConnectError of the call `name`: there are none, or they are not known in time."""
    try:
        return resolve(endpoint, Deadline(timeout))
    except OSError as error:
        text = f"the name {endpoint.host} cannot be resolved: {error.strerror or error}"
        raise ConnectError(Result.MASTER_CONNECTION_FAILED, name, text) from None


def _place(endpoint: Endpoint, ip: IP) -> Any:
    return fill_socket_addresses([(ip, endpoint.port)])


def _path(keys: str | bytes | None) -> Any:
    return _ffi.NULL if keys is None else os.fsencode(keys)


def runs_at(endpoint: Endpoint, timeout: float = 3.0, keys: str | bytes | None = None, insecure: bool = False) -> dict[str, int]:
    """Asks the master at this address for its runs: the number of peers by name, "" for the run without a name.

    A master names none to a process without its keys on another host or of another user. Otherwise as `diagnose_run`.
    """
    path = _path(keys)
    ip = permitted(endpoint, _resolved(endpoint, timeout, "pcclDiagnose"), path, insecure, "pcclDiagnose")[0]
    body = ask(RUNS, "pcclDiagnose", _place(endpoint, ip), "", path, int(timeout * 1000), insecure=insecure)
    return read_runs(body, "pcclDiagnose")


def diagnose(handle: NativeHandle, limit_ms: int) -> Diagnosis:
    """Asks the master of a communicator's run."""
    query = _ffi.new("struct pccl_status_query **")
    call(handle, "pccl_ext_diagnose_begin", limit_ms, query, name="pcclDiagnose")
    found: Diagnosis = _await(query[0], _take)
    return found


def _await(query: Any, take: Callable[[Any], Any]) -> Any:
    """Waits for the answer in slices, so that Ctrl-C works at once, and frees the question."""
    out = _ffi.new("pcclDiagnosis_t **")
    try:
        while (code := _C.pccl_ext_diagnose_wait(query, SLICE_MS, out)) == TIMED_OUT:
            pass
        PCCLError.check(code, "pcclDiagnose")
        return take(out[0])
    finally:
        _C.pccl_ext_diagnose_end(query)


def _departure(c: Any) -> DepartureReport:
    return read_struct(DepartureReport, c, uuid=uuid_in(c.uuid), reason=LossReason(c.reason))


def _take(pointer: Any) -> Diagnosis:
    """Reads a `pcclDiagnosis_t`, and frees it."""
    try:
        told = [pointer.members[i] for i in range(pointer.member_count)]
        places: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
        ranks = {number: next(places[group]) for group, number in sorted((one.group, one.join_number) for one in told)}
        members = tuple(_member(member, ranks[member.join_number]) for member in told)
        edges = tuple(_edge(pointer.edges[i], members) for i in range(pointer.edge_count))
        for i in range(pointer.number_count):
            number = pointer.numbers[i]
            members[number.member].report[_ffi.string(number.name).decode()] = number.value
        joiners = tuple(_joiner(pointer.joiners[i]) for i in range(pointer.joiner_count))
        findings, begins = find(members, edges, pointer.heartbeat_limit_s)
        members = tuple(replace(member, begins_seconds=late) for member, late in zip(members, begins, strict=True))
        departures = tuple(_departure(pointer.departures[i]) for i in range(pointer.departure_count))
        made = {"findings": tuple(findings), "members": members, "edges": edges, "joiners": joiners}
        return read_struct(Diagnosis, pointer, departures=departures, **made)
    finally:
        _C.pcclDiagnosisFree(pointer)


def _member(c: Any, rank: int) -> MemberReport:
    return read_struct(
        MemberReport,
        c,
        uuid=uuid_in(c.uuid),
        rank=rank,
        told_seconds=None if c.told_s < 0 else c.told_s,
        begins_seconds=0.0,
        report={},
        state_revision=c.state_revision if c.synced else None,
        state_hash=f"{c.state_hash[1]:016x}{c.state_hash[0]:016x}" if any(c.state_hash) else "",
    )


def _joiner(c: Any) -> JoinerReport:
    known = {"does": JOINING[c.joining], "done_bytes": c.done, "total_bytes": c.total}
    return read_struct(JoinerReport, c, uuid=uuid_in(c.uuid), **known)


def _edge(c: Any, members: tuple[MemberReport, ...]) -> EdgeReport:
    return read_struct(EdgeReport, c, member=members[c.member].uuid, other=members[c.other].uuid)
