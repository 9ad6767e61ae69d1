"""The table of links of `pccl info --master`: readable for many members."""

from __future__ import annotations

import io
import json
from uuid import UUID

from rich.console import Console

from pccl import Diagnosis, EdgeReport, MemberReport
from pccl.cli import links


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


def test_thirty_two_members():
    members = tuple(member(number) for number in range(1, 33))
    edges = tuple(edge(a, b, 1e6 * (a.uuid.int >> 96) + 1) for a in members for b in members if a is not b)
    diagnosis = Diagnosis((), members, edges, 5.0)
    text = io.StringIO()
    Console(file=text, width=120).print(links.render(diagnosis))
    lines = text.getvalue().splitlines()
    assert len(lines) == 1 + links.ROWS_MOST + 1
    assert "960 links" in lines[-1]
    # The busiest first: 32 MB in 2 s.
    assert lines[1].split()[:6] == ["00000020", "00000001", "80.0", "128.0", "2.00%", "16"]
    assert "the path has a queue" in lines[1]
    plain = links.plain(diagnosis)
    assert len(plain) == 992
    assert plain[0]["bytes_per_second"] == 16e6 + 0.5
    assert plain[0]["retransmitted_share"] == 0.02
    json.dumps(plain)


def test_a_link_by_memory_has_no_rate():
    one, other = member(1), member(2)
    diagnosis = Diagnosis((), (one, other), (edge(one, other, 1e6, by_memory=True),), 5.0)
    text = io.StringIO()
    Console(file=text, width=120).print(links.render(diagnosis))
    assert text.getvalue().splitlines()[1].split()[:6] == ["00000001", "00000002", "80.0", "-", "2.00%", "-"]
    (plain,) = links.plain(diagnosis)
    assert plain["by_memory"]
    assert plain["bytes_per_second"] == 0


def test_members_that_have_told_nothing_are_counted():
    for count, words in ((1, "one member, which has not reported"), (2, "2 members, which have not reported")):
        members = tuple(member(number) for number in range(count))
        assert words in str(links.render(Diagnosis((), members, (), 5.0)))
