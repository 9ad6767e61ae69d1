"""Members and links of a run, as its master tells of them."""

from __future__ import annotations

from uuid import UUID

from pccl import EdgeReport, MemberReport


def member(number: int) -> MemberReport:
    return MemberReport(
        uuid=UUID(int=number << 96),
        group=0,
        address="10.0.0.1:48149",
        silent_seconds=0.1,
        told_seconds=0.5,
        span_seconds=10.0,
        recent_seconds=2.0,
        ops=3.0,
        op_seconds=9.0,
        processor_seconds=1.0,
        live=1,
        oldest_seconds=0.2,
        still_seconds=0.0,
        begins_seconds=0.0,
    )


def edge(of: MemberReport, to: MemberReport, acked: float, by_memory: bool = False) -> EdgeReport:
    return EdgeReport(
        member=of.uuid,
        other=to.uuid,
        awaited=0,
        acked_bytes=acked,
        busy_seconds=1.0,
        window_seconds=0.0,
        segments=1000.0,
        retransmits=20.0,
        samples=20.0,
        backlogged=5.0,
        loaded_seconds=0.09,
        entries=3.0,
        late_seconds=0.0,
        early_seconds=0.0,
        round_trip_seconds=0.08,
        queue_seconds=0.0,
        by_memory=by_memory,
        lanes=16,
        reason="the path has a queue",
    )
