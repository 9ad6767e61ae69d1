"""`pccl dump`: the last operations of members, also of processes that hang or have died."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

import click

from pccl._core.errors import LossReason
from pccl._watch import recording as _recording
from pccl._watch.recording import Event, NoRecordingError, Recording, RecordingError, Taken
from pccl.monitor import hangs

LOST = {reason.name.lower() for reason in LossReason if reason.lost}

COLUMNS_MOST = 6
"""Members beside each other in a table; of more, it counts them."""


@click.command("dump", short_help="Show the last operations of members, and who did not enter one.")
@click.argument("sources", metavar="[PROCESS|FILE|DIRECTORY]...", nargs=-1)
@click.option("--run", metavar="NAME", help="only members of the run of this name")
@click.option("--last", type=click.IntRange(1), default=10, show_default=True, help="operations that are shown")
@click.option("--json", "as_json", is_flag=True, help="all events as JSON lines, in place of tables")
def command(sources: tuple[str, ...], run: str | None, last: int, as_json: bool) -> None:
    """Show what members of a run on this host did last, and say who has not entered which operation.

    The command only reads files (docs/events.md#after-a-hang): it works while members hang, and after they were killed. Without
    arguments it takes all processes of this user, but no run that has ended with nothing in flight; with `all` those, too.
    Copy the files of other hosts here, and name them.

    Exit status: 1 if a file cannot be read, 2 if there is none.
    """
    recordings, errors = _collect(sources)
    there = recordings
    recordings = [one for one in there if run is None or one.run_name == run]
    for error in errors:
        click.echo(error, err=True)
    if not recordings:
        if there:
            runs = ", ".join(sorted({one.run_name or "one without a name" for one in there}))
            click.echo(f"no member is of the run {run}; runs that were found: {runs}", err=True)
        elif not errors:
            click.echo(f"no events found: {_why_none(sources)}", err=True)
        sys.exit(1 if errors else 2)
    judgements = hangs.judge(recordings, max(one.taken for one in recordings))
    if not sources:
        recordings, judgements = _relevant(recordings, judgements)
    for line in _lines(recordings, judgements) if as_json else _report(recordings, judgements, last):
        click.echo(line)
    sys.exit(1 if errors else 0)


def _why_none(sources: tuple[str, ...]) -> str:
    if sources and "all" not in sources:
        return f"{', '.join(sources)} has no file that ends with .events"
    return (
        "no process of this user runs pccl on this host or has crashed in the last day; name files, or set PCCL_EVENTS=DIRECTORY "
        "as the processes have it"
    )


def _relevant(recordings: list[Recording], judgements: list[hangs.Judgement]) -> tuple[list[Recording], list[hangs.Judgement]]:
    """Leaves out runs that have ended and in which nothing was in flight, unless there are no others."""
    shown = [judgement for judgement in judgements if judgement.lives or not judgement.quiet]
    if not shown:
        return recordings, judgements
    runs = {member.recording.run for judgement in shown for member in judgement.members}
    return [one for one in recordings if one.runs or one.run in runs], shown


def _collect(sources: tuple[str, ...]) -> tuple[list[Recording], list[str]]:
    every = not sources or "all" in sources
    processes = {int(one) for one in sources if one.isdecimal()}
    given = [path for path in sources if path != "all" and not path.isdecimal()]
    named = [file for path in given for file in (_recording.files_in(path) if os.path.isdir(path) else [path])]
    taken: list[Taken] = []
    errors = []
    paths = dict.fromkeys([*(_recording.files() if every or processes else ()), *named])
    for path in paths:  # all at once: members go on meanwhile
        try:
            one = _recording.take(path)
        except RecordingError as error:
            if path in given or ((every or path in named) and not isinstance(error, NoRecordingError)):
                errors.append(str(error))
        else:
            if path in named or every or one.head.process in processes:
                taken.append(one)
    found = [one.recording(by_clock_of_now=True) for one in taken]
    errors += [
        f"process {process} has no events at {' or '.join(_recording.places()) or '/dev/shm'}; name the file of its PCCL_EVENTS"
        for process in sorted(processes - {one.process for one in found})
    ]
    return found, errors


def _lines(recordings: list[Recording], judgements: list[hangs.Judgement]) -> Iterator[str]:
    for recording in recordings:
        yield json.dumps(recording.head(), allow_nan=False)
        for event in recording.events:
            yield json.dumps(event, allow_nan=False)
    for judgement in judgements:
        for sentence in judgement.sentences:
            yield json.dumps({"at": time.time(), "kind": "judgement", "text": sentence})


def _report(recordings: list[Recording], judgements: list[hangs.Judgement], last: int) -> Iterator[str]:
    for judgement in judgements:
        yield from judgement.sentences
        yield ""
    for recording in recordings:
        yield _summary(recording)
    for judgement in judgements:
        yield ""
        yield from _table(judgement.members, last)


def _summary(recording: Recording) -> str:
    state = {True: "runs", False: "closed" if recording.closed else "has ended without closing", None: "of another host"}
    operations = sum(event["kind"] == "operation" for event in recording.events)
    run = f", run {recording.run_name}" if recording.run_name else ""
    torn = f", {recording.torn} events were cut off" if recording.torn else ""
    others = [event for event in recording.events if event["kind"] not in ("operation", "call")]
    newest = f"; last event: {_event_text(others[-1])}" if others else ""
    return f"{recording.label} on {recording.host}{run}: {state[recording.runs]}, {operations} operations{torn}{newest}"


def _event_text(event: Event) -> str:
    kind = "lost" if event["kind"] == "left" and event["reason"] in LOST else event["kind"]
    parts = []
    for field, value in event.items():
        if field in ("at", "kind") or value in ("", None):
            continue
        parts.append(
            f"{value} members" if field == "members" else f"{value}" if field in ("name", "text") else f"{field} {value}"
        )
    said = ", ".join(parts)
    return f"{hangs.clock(event['at'])} {said if kind in event else f'{kind} {said}'}"


def _outcome(operation: Event | None) -> str:
    if operation is None:
        return "not entered"
    if operation["ended"] is None:
        return "in flight" if operation["began"] is not None else "not begun"
    return operation["error"] or hangs.seconds(operation["ended"] - operation["at"])


def _table(members: list[hangs.Member], last: int) -> Iterator[str]:
    operations: dict[object, dict[int, Event]] = {}
    for place, member in enumerate(members):
        for key, operation in member.operations.items():
            operations.setdefault(key, {})[place] = operation
        for number, operation in enumerate(member.unnamed):
            operations.setdefault((place, number), {})[place] = operation
    ordered = sorted(operations.values(), key=lambda row: min(operation["at"] for operation in row.values()))[-last:]
    if not ordered:
        return
    given = Counter(member.recording.name for member in members)
    names = [_column(member.recording, unique=given[member.recording.name] == 1) for member in members]
    wide = len(members) <= COLUMNS_MOST
    rows = [["entered", "operation", "bytes", "algorithm", *(names if wide else ["entered by", "in flight at"])]]
    for row in ordered:
        first = min(row.values(), key=lambda operation: float(operation["at"]))
        cells = [hangs.clock(first["at"]), hangs.describe(first), f"{first['bytes']:,}", first["algorithm"] or "-"]
        if wide:
            cells += [_cell(member, row.get(place), first) for place, member in enumerate(members)]
        else:
            cells += [f"{len(row)} of {len(members)}", str(sum(operation["ended"] is None for operation in row.values()))]
        rows.append(cells)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for cells in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _column(recording: Recording, *, unique: bool) -> str:
    if not recording.name:
        return recording.short
    return recording.name if unique else f"{recording.name} ({recording.short})"


def _cell(member: hangs.Member, operation: Event | None, first: Event) -> str:
    if operation is None and first["ids"] and member.recording.short not in first["ids"]:
        return "-"
    key = hangs.key_of(first)
    if operation is None and key is not None and (member.has_entered(key) or not member.knows(first["at"])):
        return "?"  # overwritten, before it joined, or later than what was read
    return _outcome(operation)
