"""The links of a run, as its members have told the master: `pccl info --master`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pccl._core.names import short
from pccl._watch.reports import Diagnosis, EdgeReport
from pccl.cli.top import share

ROWS_MOST = 32


def render(diagnosis: Diagnosis, no_run: Callable[[], str]) -> RenderableType:
    """A table of the links that carry most, or what `no_run` returns."""
    if not diagnosis.members:
        return Text(str(diagnosis) if diagnosis.peer_count else no_run())
    links = _links(diagnosis)
    if not links:
        count = len(diagnosis.members)
        which = "one member, which has not reported its" if count == 1 else f"{count} members, which have not reported their"
        return Text(f"the run has {which} links yet")
    rates, names = _rates(diagnosis), _names(diagnosis)
    table = Table(box=None, header_style="bold")
    for name in ("from", "to"):
        table.add_column(name, overflow="fold", min_width=8)
    for name in ("round trip ms", "Mbit/s", "sent again", "lanes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why so many lanes", overflow="fold")
    for link in links[:ROWS_MOST]:
        rate = rates(link)
        table.add_row(
            f"{short(link.member)} {names[link.member]}",
            f"{short(link.other)} {names[link.other]}",
            f"{link.round_trip_seconds * 1e3:.1f}",
            "-" if rate is None else f"{rate * 8e-6:.1f}",
            share(link.retransmits, link.segments, digits=2),
            "-" if link.by_memory else str(link.lanes),
            link.reason,
        )
    left = len(links) - ROWS_MOST
    return Group(table, *([Text(f"{left} links that carry less are not shown; --json has all")] if left > 0 else []))


def plain(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """The same of all links, for `json`."""
    rates, names = _rates(diagnosis), _names(diagnosis)
    return [
        {
            "from": str(link.member),
            "to": str(link.other),
            "from_name": names[link.member],
            "to_name": names[link.other],
            "round_trip_seconds": link.round_trip_seconds,
            "bytes_per_second": rates(link) or 0.0,
            "retransmitted_share": link.retransmits / link.segments if link.segments > 0 else 0.0,
            "by_memory": link.by_memory,
            "lanes": link.lanes,
            "reason": link.reason,
        }
        for link in _links(diagnosis)
    ]


def _names(diagnosis: Diagnosis) -> dict[UUID, str]:
    return {member.uuid: member.name for member in diagnosis.members}


def _rates(diagnosis: Diagnosis) -> Callable[[EdgeReport], float | None]:
    """Bytes per second of a link; None: its sender has not told of any time yet, or tensors pass by memory."""
    spans = {member.uuid: member.recent_seconds for member in diagnosis.members}
    return lambda link: link.acked_bytes / spans[link.member] if spans[link.member] > 0 and not link.by_memory else None


def _links(diagnosis: Diagnosis) -> list[EdgeReport]:
    """Those over which anything was sent, the busiest first."""
    return sorted((edge for edge in diagnosis.edges if edge.acked_bytes > 0), key=lambda edge: edge.acked_bytes, reverse=True)
