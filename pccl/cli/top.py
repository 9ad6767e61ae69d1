"""`pccl top`: the members of a run as their master sees them, and who or what makes their ops slow."""

from __future__ import annotations

import json
import sys
import time
from uuid import UUID

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pccl._address import parse_endpoint
from pccl._diagnosis import Diagnosis, EdgeReport, MemberReport, diagnose_run
from pccl._errors import ConnectError

EDGES_SHOWN = 16


@click.command("top", short_help="Show what makes the ops of a run slow, live.")
@click.option("--master", "address", required=True, metavar="HOST:PORT", help="the master of the run")
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="seconds between two looks")
@click.option("--once", is_flag=True, help="print one table and end")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line, for programs; with --once just one")
def command(address: str, interval: float, once: bool, as_json: bool) -> None:
    """Show the members of a run, what they tell of their ops and links, and who or what makes ops slow, until Ctrl-C.

    docs/diagnosis.md says what the columns and the findings mean.
    """
    first = ask(address)
    console = Console()
    if once:
        _print(console, first, as_json)
        return
    if as_json or not console.is_terminal:
        while True:
            _print(console, first, as_json)
            time.sleep(interval)
            first = ask(address)
    with Live(_render(first), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            live.update(_render(ask(address)), refresh=True)


def ask(address: str) -> Diagnosis:
    """What the master at `address`, the value of --master, tells; the errors are click's."""
    try:
        return diagnose_run(parse_endpoint(address))
    except (AssertionError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="--master") from None
    except ConnectError as error:
        raise click.ClickException(f"{error.detail}: is a pccl master running there?") from None


def _print(console: Console, diagnosis: Diagnosis, as_json: bool) -> None:
    if as_json:
        print(json.dumps(diagnosis.to_json()))
        sys.stdout.flush()
    else:
        console.print(_render(diagnosis))


def _render(diagnosis: Diagnosis) -> RenderableType:
    if not diagnosis.members:
        return Text("the master serves no run: no peer is a member yet")
    findings = [
        Text(f"{finding.kind.name.lower().replace('_', ' ')}: {finding.text}", "bold red") for finding in diagnosis.findings
    ]
    return Group(
        _members(diagnosis),
        *([_edges(diagnosis)] if diagnosis.edges else []),
        *(findings or [Text("nothing is found to make ops slow", "green")]),
    )


def _members(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, header_style="bold", title_justify="left")
    table.add_column("member", no_wrap=True)
    table.add_column("address", no_wrap=True)
    for name in ("group", "ops/s", "op ms", "in ops", "begins ms", "live", "waits s", "thread", "silent s"):
        table.add_column(name, justify="right", no_wrap=True)
    named = {finding.member for finding in diagnosis.findings}
    for member in diagnosis.members:
        table.add_row(
            short(member.uuid), member.address, str(member.group), *_facts(member), style="red" if member.uuid in named else None
        )
    return table


def _facts(member: MemberReport) -> list[str]:
    silent = f"{member.silent_seconds:.1f}"
    if member.told_seconds is None or member.span_seconds <= 0:
        return ["-"] * 4 + [str(member.live), "-", "-", silent]
    return [
        f"{member.ops / member.span_seconds:.1f}",
        f"{member.op_seconds / member.ops * 1e3:.1f}" if member.ops else "-",
        f"{min(member.op_seconds / member.span_seconds, 99):.0%}",
        f"{member.begins_seconds * 1e3:.1f}",
        str(member.live),
        f"{member.oldest_seconds + member.told_seconds:.1f}" if member.live else "-",
        f"{min(member.processor_seconds / member.span_seconds, 1):.0%}",
        silent,
    ]


def _edges(diagnosis: Diagnosis) -> Table:
    """The edges that carry most."""
    back = {(edge.member, edge.other): edge.queue_seconds for edge in diagnosis.edges}
    table = Table(box=None, header_style="bold")
    table.add_column("from", no_wrap=True)
    table.add_column("to", no_wrap=True)
    for name in ("Mbit/s busy", "busy", "waiting", "window full", "sent again", "round trip ms", "queue ms"):
        table.add_column(name, justify="right", no_wrap=True)
    named = {(finding.member, finding.other) for finding in diagnosis.findings}
    spans = {member.uuid: member.recent_seconds for member in diagnosis.members}
    most = sorted(diagnosis.edges, key=lambda edge: edge.acked_bytes, reverse=True)[:EDGES_SHOWN]
    for edge in (edge for edge in diagnosis.edges if edge in most and edge.acked_bytes > 0):
        queue = back.get((edge.other, edge.member), 0.0)
        style = "red" if (edge.member, edge.other) in named else None
        table.add_row(short(edge.member), short(edge.other), *_edge_facts(edge, spans[edge.member], queue), style=style)
    return table


def _edge_facts(edge: EdgeReport, span: float, queue: float) -> list[str]:
    return [
        f"{edge.acked_bytes * 8e-6 / edge.busy_seconds:.0f}" if edge.busy_seconds else "-",
        share(edge.busy_seconds, span),
        share(edge.pressed, edge.samples),
        share(edge.window_seconds, edge.busy_seconds),
        f"{edge.retransmits / edge.segments:.2%}" if edge.segments else "-",
        f"{edge.round_trip_seconds * 1e3:.1f}",
        f"{queue * 1e3:.1f}",
    ]


def share(part: float, whole: float) -> str:
    """A part in per cent."""
    return f"{min(part / whole, 1):.0%}" if whole > 0 else "-"


def short(uuid: UUID) -> str:
    """What logs and findings call a member."""
    return uuid.hex[:8]
