"""`pccl top`: the members of a run as their master sees them, and who or what makes their ops slow."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar
from uuid import UUID

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pccl._core.address import is_loopback, parse_endpoints
from pccl._core.errors import ConnectError, PCCLError
from pccl._core.names import short
from pccl._run.credentials import VARIABLES, credentials, environment_has_some
from pccl._run.keys import run_of
from pccl._watch.diagnosis import diagnose_run, remove_member, runs_at, stacks_of
from pccl._watch.reports import AT_RISK, Diagnosis, EdgeReport, MemberReport
from pccl.lab.ranges import Range

EDGES_SHOWN = 16
DEPARTURES_MOST, DEPARTURES_SECONDS = 5, 600.0
"""Members that are gone: how many are shown, and for how long."""

NARROW = 110
PIPE_WIDTH = 160
MASTERS = "HOST:PORT[,HOST:PORT...][/RUN]"
RUNS = "runs of these masters: "

Command = TypeVar("Command", bound=Callable[..., Any])


class Access(NamedTuple):
    """What a command shows to masters: a file of keys, or a certificate with its private key and the trusted authorities."""

    keys: str | None = None
    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    insecure: bool = False

    @property
    def credentials(self) -> bytes | None:
        """As the core takes them; None: what the environment names. The error is click's."""
        try:
            return credentials(*self[:4])
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def or_environment(self) -> Access:
        """Returns the same, or with the files that the environment names if it names none."""
        keys, cert, key, ca = (os.environ.get(name) or None for name in VARIABLES)
        return self if any(self[:4]) else Access(keys, cert, key, ca, self.insecure)


def master_option(meaning: str) -> Callable[[Command], Command]:
    """Adds the option --master, without which PCCL_MASTER names the masters."""
    return click.option(
        "--master", "address", envvar="PCCL_MASTER", show_envvar=True, required=True, metavar=MASTERS, help=meaning
    )


def access_options(
    before: str = "",
    keys: str = "key file of the run, for a peer or a master",
    insecure: str = "use a master on another host without keys [default: PCCL_INSECURE=1]",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options of an Access, which the command gets as `access`.

    `before` begins the help of those that need no --cert; `keys` and `insecure` say what these are for.
    """
    texts = {
        "keys": f"{before}{keys}",
        "cert": f"{before}or a certificate of its authority, in PEM",
        "key": "with --cert: its private key",
        "ca": "with --cert: the authorities that are trusted",
    }
    added = [
        click.option(f"--{name}", type=click.Path(), metavar="FILE", help=f"{text} [default: PCCL_{name.upper()}]")
        for name, text in texts.items()
    ]
    added.append(click.option("--insecure", is_flag=True, help=f"{before}{insecure}"))

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(**given: Any) -> Any:
            return command(access=Access(**{name: given.pop(name) for name in Access._fields}), **given)

        made: Callable[..., Any] = called
        for option in reversed(added):  # click lists the last one first
            made = option(made)
        return made

    return add


@click.command("top", short_help="Show what slows a run down, live.")
@master_option("master of the run, or all masters, as the peers name them")
@click.option("--interval", type=Range(0.2, 3600), default=1.0, show_default=True, help="seconds between two requests")
@access_options()
@click.option("--once", is_flag=True, help="print one table and exit")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per line; with --once only one")
def command(address: str, interval: float, access: Access, once: bool, as_json: bool) -> None:
    """Show what slows a run down: its members, links and findings, until Ctrl-C.

    If a master that answered once stops answering, the command asks again. docs/diagnosis.md explains the findings. All
    figures cover the last three to five seconds with operations.

    Members: operations per second; their mean time; share of time in operations, above 100 % with several at once; how much
    later than the first member it starts them ("begins ms"); operations in flight, and age of the oldest; silence towards the
    master; group; share of a processor that the data thread uses.

    Links: rate while bytes were in flight, and the share of that time; shares of samples with unsent data, of time with a full
    receive window, and of retransmitted segments; shortest round trip; delay of a heartbeat under load.
    """
    masters = Masters(address, access)
    newest = masters.ask_once()
    console = standard_output()
    if once or as_json or not console.is_terminal:
        _print(console, newest, masters, as_json)
        while not once:
            time.sleep(interval)
            try:
                _print(console, masters.ask(), masters, as_json)
            except PCCLError as error:
                click.echo(f"{error.detail}: asking again", err=True)
        return
    _end_on_signals()
    try:
        _show(console, newest, masters, interval)
    finally:
        if console.is_alt_screen:  # it ended while Live began
            console.set_alt_screen(False)
            console.show_cursor(True)


def _show(console: Console, newest: Diagnosis, masters: Masters, interval: float) -> NoReturn:
    """A live table on a screen of its own."""
    shown = render(newest, masters.no_run)
    with Live(shown, console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            try:
                shown = render(masters.ask(), masters.no_run)
                live.update(shown, refresh=True)
            except PCCLError as error:  # the files of keys may be gone, too
                words = Text(f"{error.detail}: asking again. The last answer was:", "bold red")
                live.update(Group(words, shown), refresh=True)


def _end_on_signals() -> None:
    """SIGTERM and SIGHUP end this process as an exception does, which leaves the terminal as it was."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else who has started it wants it to go on, as nohup does
            signal.signal(number, end)


class Masters:
    """The masters of a run, one of which serves it: the value of --master. Threads may ask and act at once."""

    def __init__(self, addresses: str, access: Access | None = None) -> None:
        access = access or Access()
        self._keys, self._insecure = access.credentials, access.insecure
        try:
            self._endpoints = parse_endpoints(addresses)  # replaced and never changed: another thread may read it
        except (AssertionError, ValueError) as error:
            raise click.BadParameter(str(error), param_hint="--master") from None

    def ask(self) -> Diagnosis:
        """What the one that serves the run tells; the one that did so last is asked first.

        No members: all answer, and none serves a run. ConnectError: none that answers does.
        """
        idle: Diagnosis | None = None
        failures: list[ConnectError] = []
        said = []
        for endpoint in tuple(self._endpoints):
            try:
                told = diagnose_run(endpoint, keys=self._keys, insecure=self._insecure)
            except ConnectError as error:
                failures.append(error)
                said.append(error.detail)
                continue
            if has_members(told):
                self._endpoints = [endpoint, *(one for one in self._endpoints if one is not endpoint)]
                return told
            idle = idle or told
            said.append(f"{endpoint} answers and serves no such run")
        if idle is not None and not failures:
            return idle
        raise ConnectError(failures[0].result, failures[0].func_name, "; ".join(said))

    def remove(self, member: UUID, *, at_update: bool, reason: str = "") -> None:
        """Has the one that answered last take a member out, for this user; PCCLError as `remove_member`."""
        by = f"{user_name()}@{socket.gethostname()}{reason and ': '}{reason}"
        remove_member(self._endpoints[0], member, at_update=at_update, by=by, keys=self._keys)

    def stacks(self, member: UUID) -> str:
        """The Python stacks of a member, from the one that answered last; PCCLError as `stacks_of`."""
        return stacks_of(self._endpoints[0], member, self._keys)

    def _runs(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for endpoint in self._endpoints:
            with contextlib.suppress(PCCLError):
                found |= runs_at(endpoint, keys=self._keys, insecure=self._insecure)
        return found

    def runs(self) -> str:
        """The runs that these masters serve, in words; "" if they name none."""
        return _listed(self._runs())

    def why_no_run(self) -> tuple[str, str]:
        """Returns that none of these masters serves the run asked for, and which they do serve; what to do, or ""."""
        run, only = self._endpoints[0].run, run_of(self._keys)
        who, it = ("the master serves", "it serves") if len(self._endpoints) == 1 else ("the masters serve", "they serve")
        found = self._runs()
        if (run or only) in found:
            return f"the run {run or only} has no members at the moment: newcomers, or its members of before, are waited for", ""
        if found:
            named = f"run {run}" if run else "run without a name"
            advice = "name one behind the address, as in HOST:PORT/RUN" if any(found) else "leave the name out of the address"
            return f"{who} no {named}; {it} {_listed(found)}", advice
        text = f"{who} no run{f' {run or only}' if run or only else ''}: it has no members yet, or this is a standby"
        if only:
            return f"{text}; the keys are those of this run alone, and show no other", ""
        if self._keys is None and not environment_has_some() and not is_loopback(self._endpoints[0].host):
            return f"{text}; other runs are shown to another host only if it has keys", ""
        return text, ""

    def no_run(self) -> str:
        """Returns `why_no_run` as one text."""
        return ": ".join(filter(None, self.why_no_run()))

    def ask_once(self) -> Diagnosis:
        """The same; the error is click's."""
        try:
            return self.ask()
        except ConnectError as error:
            nobody = error.detail.count("no master answers") == len(self._endpoints)
            hint = ": is a pccl master running there?" if nobody else ""
            raise click.ClickException(error.detail + hint) from None
        except PCCLError as error:  # the keys: they cannot be used, or are missing
            raise click.UsageError(error.detail) from None


def user_name() -> str:
    """The name of this process's user, or its number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _listed(runs: dict[str, int]) -> str:
    return ", ".join(f"{f'/{name}' if name else 'one without a name'} (peers: {runs[name]})" for name in sorted(runs))


def has_members(told: Diagnosis) -> bool:
    """Whether the master that has told it serves the run."""
    return bool(told.members or told.peer_count)


def standard_output() -> Console:
    """Where it is no terminal, with room for all columns."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    return console


def _print(console: Console, diagnosis: Diagnosis, masters: Masters, as_json: bool) -> None:
    if as_json:
        print(json.dumps(diagnosis.to_json()))
        sys.stdout.flush()
    else:
        console.print(render(diagnosis, masters.no_run))


def render(diagnosis: Diagnosis, no_run: Callable[[], str]) -> RenderableType:
    """The tables and what is found, or what `no_run` returns."""
    if diagnosis.members:
        return _Report(diagnosis)
    return Group(Text(str(diagnosis) if diagnosis.peer_count else no_run()), *_departures(diagnosis))


def _departures(diagnosis: Diagnosis) -> list[Text]:
    """The members that went last, the newest first."""
    recent = [one for one in diagnosis.departures[-DEPARTURES_MOST:] if one.ago_seconds < DEPARTURES_SECONDS]
    return [Text(str(one), "bold red" if one.reason.lost else "") for one in reversed(recent)]


class _Report:
    """Of a diagnosis with members. How wide it may be is known when it is printed."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = options.max_width < NARROW
        yield _members(self._diagnosis, narrow)
        if self._diagnosis.edges:
            yield _edges(self._diagnosis, narrow)
        at_risk = [member.report[AT_RISK] for member in self._diagnosis.members if AT_RISK in member.report]
        if at_risk:
            yield Text(f"a loss now would cost {max(at_risk):.0f} steps")
        for member in self._diagnosis.members:
            if member.missing:
                yield Text(f"missing protection at {member.name or short(member.uuid)}: {', '.join(member.missing)}", "bold red")
            if member.state_replaced:
                who = member.name or short(member.uuid)
                yield Text(f"{who} had other content of the shared state, repaired at revision {member.state_revision}", "yellow")
        for joiner in self._diagnosis.joiners:
            yield Text(f"joins: {joiner}")
            for one in joiner.missing:
                yield Text(f"missing protection at {joiner.name or short(joiner.uuid)}: {one}", "bold red")
        yield from _departures(self._diagnosis)
        for finding in self._diagnosis.findings:
            yield Text(f"{finding.kind.name.lower().replace('_', ' ')}: {finding.text}", "bold red")
        if not self._diagnosis.findings:
            yield Text("no finding: nothing slows operations down", "green")


def _members(diagnosis: Diagnosis, narrow: bool) -> Table:
    table = Table(box=None, header_style="bold")
    _add_id(table, "member")
    have_names = any(member.name for member in diagnosis.members)
    if have_names:
        table.add_column("rank, name", overflow="fold")
    table.add_column("address", overflow="fold")
    reports = any(member.report for member in diagnosis.members)
    names = ["ops/s", "op ms", "in ops", "begins ms", "live", "waits s", "silent s"]
    _add_numbers(table, names if narrow else [*names, "group", "thread"], narrow)
    states = not narrow and any(member.state_revision is not None for member in diagnosis.members)
    if states:
        table.add_column("state", overflow="fold")
    if reports:
        table.add_column("report", overflow="fold")
    named = {finding.member for finding in diagnosis.findings}
    for member in diagnosis.members:
        facts = _facts(member)
        if narrow:
            facts = facts[:-2]
        who = [short(member.uuid), *([f"{member.rank} {member.name}"] if have_names else []), member.address]
        report = [" ".join(f"{name} {value:.4g}" for name, value in member.report.items())] if reports else []
        state = [_state(member)] if states else []
        table.add_row(*who, *facts, *state, *report, style="red" if member.uuid in named else None)
    return table


def _state(member: MemberReport) -> str:
    """Revision and hash; "!": the content was replaced."""
    if member.state_revision is None:
        return "-"
    return f"{member.state_revision} {member.state_hash[:8]}{'!' if member.state_replaced else ''}"


def _add_id(table: Table, name: str) -> None:
    table.add_column(name, no_wrap=True, min_width=8)


def _add_numbers(table: Table, names: list[str], narrow: bool) -> None:
    """Columns of numbers, which go on in the next line rather than be cut off."""
    for name in names:
        table.add_column(name.replace(" ", "\n") if narrow else name, justify="right", overflow="fold")


def _facts(member: MemberReport) -> list[str]:
    """The last two are for wide tables."""
    silent = f"{member.silent_seconds:.1f}"
    if member.told_seconds is None or member.span_seconds <= 0:
        return ["-"] * 4 + [str(member.live), "-", silent, str(member.group), "-"]
    return [
        f"{member.ops / member.span_seconds:.1f}",
        f"{member.op_seconds / member.ops * 1e3:.1f}" if member.ops else "-",
        f"{min(member.op_seconds / member.span_seconds, 99):.0%}",
        f"{member.begins_seconds * 1e3:.1f}",
        str(member.live),
        f"{member.oldest_seconds + member.told_seconds:.1f}" if member.live else "-",
        silent,
        str(member.group),
        f"{min(member.processor_seconds / member.span_seconds, 1):.0%}",
    ]


def _edges(diagnosis: Diagnosis, narrow: bool) -> Table:
    """The edges that carry most."""
    back = {(edge.member, edge.other): edge.queue_seconds for edge in diagnosis.edges}
    table = Table(box=None, header_style="bold")
    _add_id(table, "from")
    _add_id(table, "to")
    names = ["Mbit/s busy", "busy", "waiting", "window full", "sent again", "round trip ms", "queue ms"]
    _add_numbers(table, names, narrow)
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
        f"{edge.acked_bytes * 8e-6 / edge.busy_seconds:.0f}" if edge.busy_seconds and not edge.by_memory else "-",
        share(edge.busy_seconds, span),
        share(edge.backlogged, edge.samples),
        share(edge.window_seconds, edge.busy_seconds),
        share(edge.retransmits, edge.segments, digits=2),
        f"{edge.round_trip_seconds * 1e3:.1f}",
        f"{queue * 1e3:.1f}",
    ]


def share(part: float, whole: float, digits: int = 0) -> str:
    """A part in per cent."""
    return f"{min(part / whole, 1):.{digits}%}" if whole > 0 else "-"
