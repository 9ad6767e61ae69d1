"""Who or what makes the ops of a run slow: what `Communicator.diagnose` and `pccl top` show (docs/diagnosis.md)."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from pccl._address import Endpoint, fill_socket_address, resolve
from pccl._calls import SLICE_MS, TIMED_OUT, Deadline, NativeHandle, call
from pccl._errors import ConnectError, PCCLError, Result
from pccl._exports import publish
from pccl._loader import load_native_module
from pccl._names import text_of

_ffi, _C = load_native_module()


class FindingKind(enum.Enum):
    """What is wrong with a member, or with the way from one member to another one."""

    STRAGGLER = _C.pcclDiagnosisStraggler
    """The member begins ops later than the others: it computes for longer."""
    SLOW_SENDER = _C.pcclDiagnosisSlowSender
    """What the member sends leaves it slowly, to whomever it goes."""
    SLOW_RECEIVER = _C.pcclDiagnosisSlowReceiver
    """What goes to the member is taken slowly, from whomever it comes."""
    SLOW_EDGE = _C.pcclDiagnosisSlowEdge
    """The way from `member` to `other` is slow, and other ways of both are not."""
    LOSS = _C.pcclDiagnosisLoss
    """Packets are lost on the way from `member` to `other`."""
    HUNG = _C.pcclDiagnosisHung
    """The member does nothing, and the others wait for it in an op."""


COUNTS_ONLY = (
    "The run has {peers} members, in epoch {epoch}. The master shows members, links and findings only to those who may see them. "
    "To see them, run this command as the master's user on the master's host, or call diagnose() in a member."
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that makes ops slow."""

    kind: FindingKind
    member: UUID  # of an edge, the sender
    other: UUID | None  # of an edge, the receiver; None: the finding is of the member
    value: float  # measured: seconds (STRAGGLER, HUNG), bytes per second that wait (SLOW_*), fraction of resent segments (LOSS)
    usual: float  # the same of the others
    cost: float  # fraction of the time of an op that is spent on it, 0 to 1
    confidence: float  # 0 to 1
    text: str  # the evidence, in words

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class MemberReport:
    """What a member tells of its own ops. Sums are over the last seconds in which ops of it ended."""

    uuid: UUID
    group: int
    address: str  # where other members reach it
    silent_seconds: float  # since the master has heard anything of it
    told_seconds: float | None  # since it has told what follows; None: never
    span_seconds: float  # that the sums are of
    recent_seconds: float  # that the sums of what it has seen of others are of
    ops: float  # calls that ended
    op_seconds: float  # from each one's launch to its end, together
    processor_seconds: float  # that the thread of its data plane had
    live: int  # calls that have not ended
    oldest_seconds: float  # since the first of them was launched
    still_seconds: float  # since anything of an op came, went or ended
    begins_seconds: float  # how much later than the first of its group it begins an op, on average
    name: str = ""  # what logs call it; empty: it has none


@dataclass(frozen=True, kw_only=True)
class EdgeReport:
    """What a member has seen of another one."""

    member: UUID  # who tells
    other: UUID  # of whom
    awaited: int  # calls under way of which nothing has come from there
    acked_bytes: float  # sent there and acknowledged
    busy_seconds: float  # in which bytes were under way there
    window_seconds: float  # of these, in which the receive window there was full
    segments: float
    retransmits: float  # those sent again all the time, not in bursts, as where a queue overflows
    samples: float  # looks at the links while a large op ran
    backlogged: float  # of these, those that found bytes waiting to be sent
    loaded_seconds: float  # the mean round trip of the latter, with what waits on the way; 0: there were none
    entries: float  # ops in which the other one comes next in the ring
    late_seconds: float  # how much later than `member` itself `other` was heard to begin them, together
    early_seconds: float  # likewise, how much earlier
    round_trip_seconds: float  # the shortest of late
    queue_seconds: float  # how much longer than at best what `other` sends is on its way here
    by_memory: bool  # large tensors pass there by memory, and the numbers above are of the little that connections carry
    lanes: int  # connections that carry large tensors there, beside the direct one
    reason: str  # why so many do


@dataclass(frozen=True)
class Diagnosis:
    """What a run's members have seen in the last seconds, and what is made of it."""

    findings: tuple[Finding, ...]  # the gravest first; empty: nothing is found to be wrong
    members: tuple[MemberReport, ...]  # in the order of the ring, group by group
    edges: tuple[EdgeReport, ...]  # of very many members, a part
    heartbeat_limit_seconds: float
    counts_only: bool = False  # the master takes the caller for a stranger, and told no more than the two counts below
    peer_count: int = 0  # members of the run; 0: the master serves no run
    epoch: int = 0  # in force

    def to_json(self) -> dict[str, Any]:
        """The same in what `json` writes: ids as text, kinds in lower case."""
        return {
            "findings": [_plain(finding) for finding in self.findings],
            "members": [_plain(member) for member in self.members],
            "edges": [_plain(edge) for edge in self.edges],
            "heartbeat_limit_seconds": self.heartbeat_limit_seconds,
            "counts_only": self.counts_only,
            "peer_count": self.peer_count,
            "epoch": self.epoch,
        }

    def __str__(self) -> str:
        if self.counts_only:
            return COUNTS_ONLY.format(peers=self.peer_count, epoch=self.epoch)
        return "\n".join(finding.text for finding in self.findings) or "nothing is found to make ops slow"


def _plain(item: Any) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, UUID) else value.name.lower() if isinstance(value, FindingKind) else value
        for name, value in asdict(item).items()
    }


def diagnose_run(endpoint: Endpoint, timeout: float = 3.0) -> Diagnosis:
    """Asks the master at this address. No peers: it serves no run. ConnectError: no master answers there."""
    deadline = Deadline(timeout)
    try:
        addresses = resolve(endpoint, deadline)
    except OSError as error:
        text = f"the name {endpoint.host} cannot be resolved: {error.strerror or error}"
        raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclDiagnose", text) from None
    text = ""
    for ip in addresses:
        address = _ffi.new("ccoip_socket_address_t *")
        fill_socket_address(address, ip, endpoint.port)
        query = _ffi.new("struct pccl_status_query **")
        PCCLError.check(_C.pccl_ext_diagnose_begin_run(address, int(timeout * 1000), query), "pcclDiagnose")
        try:
            return _await(query[0])
        except PCCLError as error:
            text = f"no master answers at {endpoint}: {error.detail.removeprefix('no master answers: ')}"
    raise ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclDiagnose", text)


def diagnose(handle: NativeHandle, limit_ms: int) -> Diagnosis:
    """Asks the master of a communicator's run."""
    query = _ffi.new("struct pccl_status_query **")
    call(handle, "pccl_ext_diagnose_begin", limit_ms, query, name="pcclDiagnose")
    return _await(query[0])


def _await(query: Any) -> Diagnosis:
    """Waits for the answer in slices, so that Ctrl-C works at once, and frees the question."""
    out = _ffi.new("struct pccl_diagnosis **")
    try:
        while (code := _C.pccl_ext_diagnose_wait(query, SLICE_MS, out)) == TIMED_OUT:
            pass
        PCCLError.check(code, "pcclDiagnose")
    finally:
        _C.pccl_ext_diagnose_end(query)
    return _take(out[0])


def _take(pointer: Any) -> Diagnosis:
    """Reads a `struct pccl_diagnosis`, and frees it."""
    try:
        members = tuple(_member(pointer.members[i]) for i in range(pointer.member_count))
        edges = tuple(_edge(pointer.edges[i], members) for i in range(pointer.edge_count))
        findings = tuple(_finding(pointer.findings[i]) for i in range(pointer.finding_count))
        counts = pointer.counts_only, pointer.peer_count, pointer.epoch
        return Diagnosis(findings, members, edges, pointer.heartbeat_limit_s, *counts)
    finally:
        _C.pccl_ext_diagnosis_free(pointer)


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
        begins_seconds=c.begins_s,
    )


def _edge(c: Any, members: tuple[MemberReport, ...]) -> EdgeReport:
    return EdgeReport(
        member=members[getattr(c, "from")].uuid,
        other=members[c.to].uuid,
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


def _finding(c: Any) -> Finding:
    member, other = _uuid(c.member), _uuid(c.other)
    return Finding(
        kind=FindingKind(c.kind),
        member=member,
        other=None if other == member else other,
        value=c.value,
        usual=c.usual,
        cost=c.cost,
        confidence=c.confidence,
        text=text_of(c.text),
    )


publish(globals())
