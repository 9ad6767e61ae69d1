"""The history of a run as a list of events: made from what the master tells about once a second, kept in memory and in a file.

An event is a dictionary that JSON can write, with `at` (seconds since 1970) and `kind` (docs/event-files.md#pccl-web). Samples
name only what has changed, and now and then all, so that a reader may begin anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any

from pccl._core.names import short
from pccl._host.bounded import read_json
from pccl._watch.reports import AT_RISK, DepartureReport, Diagnosis, EdgeReport, Finding, JoinerReport, MemberReport, finite

Event = dict[str, Any]

State = tuple[int, str, bool]
"""Revision and hash of a member's shared state, and whether its content was replaced."""

MEMBER_VALUES = ("operations", "operation_ms", "busy", "live", "oldest", "late_ms", "silent", "processor")
"""Of a member, in the order of a sample: operations a second; mean time of one; share of the time in operations; in flight; age
of the oldest in seconds; how much later than the first it begins them; seconds without news; share of a processor."""

LINK_VALUES = ("bytes", "busy", "repeated", "round_trip_ms", "queue_ms")
"""Of a link: bytes a second; share of the time with bytes under way; share of segments sent again; shortest round trip; queue."""

WHOLE_SECONDS = 60.0
"""Between two samples that name all members and links."""

BYTES_PER_SECOND = 4000
"""What samples of a large run may take: an hour then has less than 20 MB. They come less often the more members there are."""

BYTES_PER_MEMBER = 60

BYTES_PER_LINK = 45

LINKS_MOST = 64
"""The busiest ones of a sample."""

NUMBERS_MOST = 64
"""Numbers of programs in a sample, of all members together."""

BYTES_PER_JOINER = 100

STATE_DIGITS = 8
"""Of the hash of a state."""

FORMAT = 1

LINE_BYTES = 128 << 10
"""The longest line of a file that is read: more than a sample of the largest run has."""

SAMPLE_PARTS = (("members", dict), ("links", dict), ("quiet", list))

LATEST = 1e11
"""Seconds since 1970, that a date may have."""


def wall_clock() -> Callable[[], float]:
    """Returns a clock in seconds since 1970 that never jumps: the system's as it is now, then by the time that passes."""
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: began + time.clock_gettime(time.CLOCK_BOOTTIME)


class Recorder:
    """Turns what a master tells into events. It is pure: the caller has the clock."""

    def __init__(self) -> None:
        self._answers: bool | None = None
        self._epoch: int | None = None
        self._gone: set[str] = set()
        self._observed_at = float("inf")
        self._generation = 0
        self._members: dict[str, MemberReport] = {}
        self._findings: dict[str, Event] = {}
        self._missing: set[tuple[str, str]] = set()
        self._replaced: dict[str, int] = {}
        self._values: dict[str, list[float]] = {}
        self._reports: dict[str, dict[str, float | None]] = {}
        self._state: Event = {}
        self._joiners: Event | None = None
        self._links: dict[str, list[float]] = {}
        self._sample_at = float("-inf")
        self._whole_at = float("-inf")

    def silence(self, at: float, text: str) -> list[Event]:
        """No master has answered."""
        changed, self._answers = self._answers is not False, False
        return [{"at": at, "kind": "master", "answers": False, "text": text}] if changed else []

    def observe(self, at: float, told: Diagnosis) -> list[Event]:
        """What is new in an answer."""
        events: list[Event] = []
        if self._answers is not True:
            self._answers = True
            events.append({"at": at, "kind": "master", "answers": True, "text": ""})
        if told.generation > self._generation > 0:
            events.append({"at": at, "kind": "failover", "generation": told.generation})
        self._generation = told.generation or self._generation
        members = {short(member.uuid): member for member in told.members}
        gone = {short(one.uuid): one for one in told.departures}
        fresh = {name for name, one in gone.items() if name not in self._gone and at - one.ago_seconds > self._observed_at}
        names = [name for name in gone if name in fresh or name in self._members]
        for name in [*names, *(name for name in self._members if name not in gone)]:
            if name in members:
                continue
            events.append(_left(at, name, gone.get(name)))
            self._values.pop(name, None)
            self._reports.pop(name, None)
        self._gone, self._observed_at = set(gone), at
        kind = "member" if self._epoch is None else "joined"  # those of the first answer have been there before
        events += [_member(kind, at, name, members[name]) for name in members if name not in self._members]
        kept = members.keys() & self._members.keys()
        events += [_member("member", at, name, members[name]) for name in kept if members[name].rank != self._members[name].rank]
        count = len(members) or told.peer_count
        if told.epoch != self._epoch:
            self._epoch = told.epoch
            events.append({"at": at, "kind": "epoch", "epoch": told.epoch, "members": count})
        self._members = members
        events += self._compare_findings(at, told.findings)
        events += self._compare_protections(at, told)
        events += self._compare_states(at)
        if at - self._sample_at >= max(0.5, self._bytes(told, count) / BYTES_PER_SECOND) and members:
            events += self._sample(at, told)
        return events

    def _bytes(self, told: Diagnosis, count: int) -> int:
        """Of a sample in which everything has changed."""
        return count * BYTES_PER_MEMBER + min(len(told.edges), LINKS_MOST) * BYTES_PER_LINK + len(told.joiners) * BYTES_PER_JOINER

    def _compare_findings(self, at: float, findings: Iterable[Finding]) -> list[Event]:
        now = {}
        for finding in findings:
            other = short(finding.other) if finding.other else ""
            kind = finding.kind.name.lower()
            event = {"kind": "finding", "finding": kind, "member": short(finding.member), "other": other}
            now[f"{kind} {event['member']} {other}"] = {**event, "cost": round(finding.cost, 3), "text": finding.text}
        over = [{"at": at, **event, "kind": "over"} for key, event in self._findings.items() if key not in now]
        new = [{"at": at, **event} for key, event in now.items() if key not in self._findings]
        self._findings = now
        return over + new

    def _compare_protections(self, at: float, told: Diagnosis) -> list[Event]:
        peers: list[MemberReport | JoinerReport] = [*told.members, *told.joiners]
        before, self._missing = self._missing, {(short(peer.uuid), one) for peer in peers for one in peer.missing}
        reports: dict[str, dict[str, float]] = {short(one.uuid): {} for one in told.joiners}
        reports |= {short(one.uuid): one.report for one in told.members}
        return [
            {
                "at": at,
                "kind": "protection",
                "member": name,
                "protection": one,
                "missing": (name, one) in self._missing,
                "steps": finite(reports[name]).get(AT_RISK),
            }
            for name, one in sorted(before ^ self._missing)
            if name in reports
        ]

    def _compare_states(self, at: float) -> list[Event]:
        """Members that had other content of a revision than their group."""
        before = self._replaced
        self._replaced = {name: one.state_revision or 0 for name, one in self._members.items() if one.state_replaced}
        return [
            {"at": at, "kind": "state_mismatch", "member": name, "revision": revision, "repaired": True}
            for name, revision in self._replaced.items()
            if before.get(name) != revision
        ]

    def _sample(self, at: float, told: Diagnosis) -> list[Event]:
        whole = at - self._whole_at >= WHOLE_SECONDS
        events: list[Event] = []
        had_links = list(self._links)
        if whole:
            self._whole_at = at
            events = [_member("member", at, name, member) for name, member in self._members.items()]
            events += [{"at": at, **event} for event in self._findings.values()]
            self._values, self._links, self._reports, self._state = {}, {}, {}, {}
            self._joiners = None
        values = {name: member_values(member) for name, member in self._members.items()}
        spans = {member.uuid: member.recent_seconds for member in told.members}
        busiest = sorted(told.edges, key=lambda edge: edge.acked_bytes, reverse=True)[:LINKS_MOST]
        links = {
            f"{short(edge.member)} {short(edge.other)}": _link_values(edge, spans.get(edge.member, 0.0))
            for edge in busiest
            if edge.acked_bytes > 0
        }
        sample: Event = {"at": at, "kind": "sample"}
        sample["members"] = {name: one for name, one in values.items() if one != self._values.get(name)}
        sample["links"] = {name: one for name, one in links.items() if one != self._links.get(name)}
        sample["quiet"] = [name for name in had_links if name not in links]
        reports = _reports(self._members)
        sample["report"] = {name: one for name, one in reports.items() if one != self._reports.get(name)}
        state = _state(self._members)
        sample["state"] = {} if state == self._state else state
        self._values, self._links, self._reports, self._state, self._sample_at = values, links, reports, state, at
        joiners = {short(one.uuid): _joiner(one) for one in told.joiners}
        if joiners != self._joiners:
            sample["joiners"] = self._joiners = joiners
            return [*events, sample]
        parts = ("members", "links", "quiet", "report", "state")
        return [*events, sample] if whole or any(sample[part] for part in parts) else events


def _state(members: dict[str, MemberReport]) -> Event:
    """The shared state of most members of each group, and of the members that differ: few bytes for many members."""
    states = {name: _state_of(member) for name, member in members.items() if member.state_revision is not None}
    if not states:
        return {}
    votes: defaultdict[str, Counter[State | None]] = defaultdict(Counter)
    for name, member in members.items():
        votes[str(member.group)][states.get(name)] += 1
    groups = {group: found.most_common(1)[0][0] for group, found in votes.items()}
    others = {name: states.get(name) for name, member in members.items() if states.get(name) != groups[str(member.group)]}
    return {"groups": groups, "others": others}


def _state_of(member: MemberReport) -> State:
    return member.state_revision or 0, member.state_hash[:STATE_DIGITS], member.state_replaced


def _joiner(joiner: JoinerReport) -> Event:
    eta = joiner.eta_seconds
    found = {"name": joiner.name, "does": joiner.does, "done": joiner.done_bytes, "total": joiner.total_bytes}
    return {**found, "eta": None if eta is None else _rounded(eta)}


def _reports(members: dict[str, MemberReport]) -> dict[str, dict[str, float | None]]:
    """The numbers of programs, to four digits."""
    found: dict[str, dict[str, float | None]] = {}
    left = NUMBERS_MOST
    for name, member in members.items():
        some = dict(islice(member.report.items(), left))
        left -= len(some)
        if some:
            found[name] = finite({key: float(f"{value:.4g}") for key, value in some.items()})
    return found


def _member(kind: str, at: float, name: str, member: MemberReport) -> Event:
    place = {"address": member.address, "group": member.group, "rank": member.rank}
    return {"at": at, "kind": kind, "member": name, "name": member.name, **place}


def _left(at: float, name: str, known: DepartureReport | None) -> Event:
    event = {"at": at, "kind": "left", "member": name}
    if known is None:
        return {**event, "reason": "unknown", "text": "is gone (unknown: the master does not say why)"}
    return {**event, "name": known.name, "reason": known.reason.name.lower(), "text": known.text}


def _rounded(value: float) -> float:
    """To two digits, so that what hardly changes is no change."""
    return float(f"{value:.2g}")


def member_values(member: MemberReport) -> list[float]:
    """Those of MEMBER_VALUES, in their order."""
    span = member.span_seconds or 1.0
    return [
        _rounded(value)
        for value in (
            member.ops / span,
            1000 * member.op_seconds / member.ops if member.ops else 0.0,
            member.op_seconds / span,
            member.live,
            member.oldest_seconds,
            1000 * member.begins_seconds,
            member.silent_seconds if member.silent_seconds > 1 else 0.0,
            member.processor_seconds / span,
        )
    ]


def _link_values(edge: EdgeReport, span: float) -> list[float]:
    return [
        _rounded(value)
        for value in (
            edge.acked_bytes / (span or 1.0),
            edge.busy_seconds / (span or 1.0),
            edge.retransmits / edge.segments if edge.segments else 0.0,
            1000 * edge.round_trip_seconds,
            1000 * edge.queue_seconds,
        )
    ]


class Log:
    """The newest events in memory, numbered from 0, and all of them in a file if there is one. Many threads may use it."""

    def __init__(self, most_bytes: int = 32 << 20) -> None:
        """`most_bytes`: of the events in memory, as JSON."""
        self.name = secrets.token_hex(8)
        """By which a page notices that the numbers are those of another log: its server was restarted."""
        self.file: IO[bytes] | None = None
        self._lines: deque[bytes] = deque()
        self._first = 0
        self._bytes = 0
        self._most = most_bytes
        self._news = threading.Condition()

    def add(self, events: Iterable[Event]) -> None:
        """OSError: the file cannot be written; then they are not in memory either."""
        lines = [json.dumps(event, separators=(",", ":"), allow_nan=False).encode() for event in events]
        if not lines:
            return
        file = self.file  # another thread may set it to None
        if file is not None:
            file.write(b"".join(line + b"\n" for line in lines))
        with self._news:
            for line in lines:
                self._lines.append(line)
                self._bytes += len(line)
            while self._bytes > self._most and len(self._lines) > 1:
                self._bytes -= len(self._lines.popleft())
                self._first += 1
            self._news.notify_all()

    def after(self, number: int, patience: float, most: int = 5000) -> tuple[list[bytes], int]:
        """Events from this number on, at most so many, and the number of the next. Waits `patience` seconds for the first.

        A number beyond the next one is of another log: it counts as 0.
        """
        with self._news:
            self._news.wait_for(lambda: self._first + len(self._lines) != number, patience)
            begin = max(number if number <= self._first + len(self._lines) else 0, self._first)
            lines = list(islice(self._lines, begin - self._first, begin - self._first + most))
            return lines, begin + len(lines)


def create_file(path: str) -> IO[bytes]:
    """Opens a file for a Log, which nobody else may read: names and addresses are in it. FileExistsError: it is there.

    It has no buffer: what a full disk has refused once must not be written when it is closed.
    """
    opened = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb", 0)
    opened.write(json.dumps({"kind": "pccl-events", "format": FORMAT}).encode() + b"\n")
    return opened


def read_file(path: str) -> Iterator[Event]:
    """The events of a file; a last line that is cut off is left out. ValueError: it has no events of pccl; OSError."""
    with open(path, "rb") as opened:
        lines = iter(lambda: opened.readline(LINE_BYTES + 1), b"")
        head = None
        with contextlib.suppress(ValueError):
            head = read_json(next(lines, b"null"), LINE_BYTES)
        if not isinstance(head, dict) or head.get("kind") != "pccl-events":
            raise ValueError(f"{path} has no events of a run: `pccl web --events FILE` writes them")
        if head.get("format") != FORMAT:
            raise ValueError(f"{path} is of another version of pccl")
        for number, line in enumerate(lines, 2):
            if not line.endswith(b"\n") and len(line) <= LINE_BYTES:
                return
            try:
                yield _event_of(line)
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path}, line {number}: this is no event; remove the line to see the others") from None


def _event_of(line: bytes) -> Event:
    """Parses a line. Raises an error of any kind if that is not what a page needs of each event."""
    event: Event = read_json(line, LINE_BYTES)
    if not 0 <= event["at"] < LATEST or not isinstance(event["kind"], str):
        raise TypeError
    for part, kind in SAMPLE_PARTS if event["kind"] == "sample" else ():
        if not isinstance(event[part], kind):
            raise TypeError
    return event
