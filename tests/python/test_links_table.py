"""The table of links of `pccl info --master`: readable for many members."""

from __future__ import annotations

import io
import json

from reports import edge, member
from rich.console import Console

from pccl import Diagnosis
from pccl.cli import links


def test_thirty_two_members():
    members = tuple(member(number) for number in range(1, 33))
    edges = tuple(edge(a, b, 1e6 * (a.uuid.int >> 96) + 1) for a in members for b in members if a is not b)
    diagnosis = Diagnosis((), members, edges, 5.0)
    text = io.StringIO()
    Console(file=text, width=120).print(links.render(diagnosis, str))
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
    Console(file=text, width=120).print(links.render(diagnosis, str))
    assert text.getvalue().splitlines()[1].split()[:6] == ["00000001", "00000002", "80.0", "-", "2.00%", "-"]
    (plain,) = links.plain(diagnosis)
    assert plain["by_memory"]
    assert plain["bytes_per_second"] == 0


def test_members_that_have_told_nothing_are_counted():
    for count, words in ((1, "one member, which has not reported"), (2, "2 members, which have not reported")):
        members = tuple(member(number) for number in range(count))
        assert words in str(links.render(Diagnosis((), members, (), 5.0), str))
