"""Who has not entered which operation: a judgement over the recordings of several members. It is pure.

The same operation has the same epoch, tag, sequence and subgroup at all members, as in the protocol. As torch's flight recorder
does, this compares what members have entered and with which arguments; unlike there, the epoch says who has to take part.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pccl._watch.recording import Event, Recording

Key = tuple[int, int, int, int]
"""Epoch, tag, sequence, subgroup."""

ARGUMENTS = ("collective", "count", "dtype", "op", "codec", "root")
"""What all members of an operation have to agree on."""

OWN_COUNT = {"all_to_all_v"}
"""Collectives in which each member has its own count."""

NAMED_MOST = 8
"""Members that a text names."""


def key_of(operation: Event) -> Key | None:
    """None: it has no name yet, because it has not begun."""
    if operation["began"] is None:
        return None
    return (operation["epoch"], operation["tag"], operation["sequence"], operation["subgroup"])


def arguments(operation: Event) -> str:
    """In words, such as "1,024 float, sum"."""
    parts = [f"{operation['count']:,} {operation['dtype']}"] if operation["collective"] != "barrier" else []
    parts += [operation["op"]] if operation["op"] else []
    parts += [f"root {operation['root']}"] if operation["root"] is not None else []
    return ", ".join(parts)


def describe(operation: Event) -> str:
    """Name of an operation, with its arguments."""
    what = arguments(operation)
    number = f" number {operation['sequence']}" if operation["sequence"] is not None else ""
    return f"{operation['collective']}{number} with tag {operation['tag']}" + (f" ({what})" if what else "")


def together(names: Sequence[str]) -> str:
    """Joins names for a text, and leaves out what is too much."""
    if len(names) > NAMED_MOST:
        return f"{', '.join(names[:NAMED_MOST])} and {len(names) - NAMED_MOST} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def seconds(span: float) -> str:
    """A length of time, with as many digits as mean something."""
    return f"{span:.0f} s" if span >= 10 else f"{span:.1f} s" if span >= 0.1 else f"{max(0.0, span) * 1000:.1f} ms"


def clock(at: float) -> str:
    """The local time of day, to the millisecond."""
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03}"


@dataclass(frozen=True)
class _Now:
    """When the members are judged. If all of their processes have ended, texts give times of day in place of spans."""

    at: float
    ended: bool

    def waits(self, count: int, since: float, inside: str = "") -> str:
        """A predicate of so many members, such as "wait in update_topology for 31 s"."""
        if self.ended:
            return f"had waited{inside} since {clock(since)} when the processes ended"
        return f"{'waits' if count == 1 else 'wait'}{inside} for {seconds(self.at - since)}"

    def ago(self, at: float) -> str:
        """Such as "31 s ago"."""
        return f"at {clock(at)}" if self.ended else f"{seconds(self.at - at)} ago"


@dataclass
class Member:
    """What one recording says."""

    recording: Recording
    operations: dict[Key, Event] = field(default_factory=dict)
    unnamed: list[Event] = field(default_factory=list)
    calls: list[Event] = field(default_factory=list)
    """Calls that have not ended."""
    last: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """The highest sequence, by epoch, tag and subgroup."""
    others: dict[str, str] = field(default_factory=dict)
    """Names of the members of its group, by uuid."""
    epoch: int = 0

    @classmethod
    def of(cls, recording: Recording) -> Member:
        """Sorts the events."""
        member = cls(recording)
        for event in recording.events:
            match event["kind"]:
                case "operation":
                    member._add(event)
                case "call" if event["ended"] is None:
                    member.calls.append(event)
                case "joined":
                    member.others[event["member"]] = event["name"]
                case "left":
                    member.others.pop(event["member"], None)
                case "epoch":
                    member.epoch = event["epoch"]
        return member

    def _add(self, operation: Event) -> None:
        key = key_of(operation)
        if key is None:
            self.unnamed += [operation] if operation["ended"] is None else []
            return
        self.operations[key] = operation
        counter = (key[0], key[1], key[3])
        self.last[counter] = max(self.last.get(counter, 0), key[2])

    @property
    def label(self) -> str:
        """As texts call it."""
        return self.recording.label

    def has_entered(self, key: Key) -> bool:
        """Also if the record was overwritten since."""
        return key in self.operations or self.last.get((key[0], key[1], key[3]), 0) >= key[2] or self.epoch > key[0]

    def knows(self, at: float) -> bool:
        """Whether its recording tells what it had entered at this time. A copy from another host may be of any time."""
        return not self.recording.runs or at <= self.recording.taken

    def newest(self) -> Event | None:
        """The operation that it has entered last."""
        return max([*self.operations.values(), *self.unnamed], key=lambda operation: float(operation["at"]), default=None)


@dataclass(frozen=True)
class Judgement:
    """Of one peer group of one run."""

    members: list[Member]
    sentences: list[str]
    """The gravest first; at least one."""
    quiet: bool
    """Nothing is in flight."""

    @property
    def lives(self) -> bool:
        """Whether the process of a member lives."""
        return any(member.recording.runs for member in self.members)


def judge(recordings: Iterable[Recording], now: float) -> list[Judgement]:
    """One for each peer group that recordings of peers are of. `now`: in seconds since 1970.

    If no process lives any more, texts give times of day, since nobody knows how long a member had waited.
    """
    groups: defaultdict[tuple[int, int], list[Member]] = defaultdict(list)
    for recording in recordings:
        if recording.role == "peer" and recording.run:
            groups[recording.run, recording.group].append(Member.of(recording))
    found = []
    for members in groups.values():
        members.sort(key=lambda member: (member.recording.name, member.recording.short))
        here = _Now(now, all(member.recording.runs is False for member in members))
        sentences = [*_judge_operations(members, here), *_judge_calls(members, here)]
        found.append(Judgement(members, sentences or [_quiet(members, here)], not sentences))
    return sorted(found, key=lambda judgement: (judgement.quiet, not judgement.lives))


def _quiet(members: list[Member], now: _Now) -> str:
    ended = [member.label for member in members if member.recording.runs is False and not member.recording.closed]
    gone = f"; {together(ended)} ended without closing its communicator" if ended else ""
    refused = [
        (float(operation["ended"]), key)
        for member in members
        for key, operation in member.operations.items()
        if operation["error"] == "mismatch"
    ]
    if refused:
        at, key = max(refused)
        inside = [member for member in members if key in member.operations]
        said = _disagreement(inside, inside[0], key)
        return f"No operation is in flight{gone}. The last refused operation ended {now.ago(at)}. {said}".rstrip()
    return f"No operation is in flight{gone}."


def _disagreement(inside: list[Member], one: Member, key: Key) -> str:
    """A sentence, if members of an operation have not called it as this one does."""
    mine = one.operations[key]
    other = next((other for other in inside if _differs(other.operations[key], mine)), None)
    if other is None:
        return ""
    theirs = other.operations[key]
    return (
        f"Arguments of number {key[2]} with tag {key[1]} disagree: {one.label} calls {mine['collective']} ({arguments(mine)}), "
        f"and {other.label} {theirs['collective']} ({arguments(theirs)})."
    )


def _state(member: Member, now: _Now) -> str:
    """What a member that is missing did last, as the end of a sentence."""
    dead = ", and its process has ended" if member.recording.runs is False else ""
    waits = [call for call in member.calls if call["name"] != "connect"]
    if waits:
        return f"it {now.waits(1, waits[0]['at'], ' in ' + waits[0]['name'])}{'' if now.ended else dead}"
    newest = member.newest()
    if newest is None:
        return f"it has entered no operation{dead}"
    if newest["ended"] is None:
        return f"it is in {describe(newest)}{dead}"
    return f"its last operation, {describe(newest)}, ended {now.ago(newest['ended'])}{dead}"


def _expected(members: list[Member], waiting: Member, operation: Event) -> tuple[list[Member], list[str]]:
    """Who takes part in an operation: members with a recording, and names of those without."""
    if operation["subgroup"] and operation["ids"]:
        wanted = set(operation["ids"])
    else:
        subgroup = operation["subgroup"]
        there = [member for member in members if not subgroup or any(one[3] == subgroup for one in member.operations)]
        wanted = {member.recording.short for member in there}
        if not subgroup and waiting.recording.short in waiting.others:
            wanted = set(waiting.others)
    read = [member for member in members if member.recording.short in wanted]
    names = {uuid: name for member in members for uuid, name in member.others.items()}
    unread = wanted - {member.recording.short for member in read}
    return read, sorted(f"{names.get(uuid, '?')} ({uuid})" for uuid in unread)


def _judge_operations(members: list[Member], now: _Now) -> list[str]:
    live: dict[Key, float] = {}
    for member in members:
        for key, operation in member.operations.items():
            if operation["ended"] is None:
                live[key] = min(live.get(key, now.at), operation["at"])
    sentences = []
    for key in sorted(live, key=lambda key: live[key]):
        sentences += _judge_one(members, key, now)
    for member in members:
        sentences += [
            f"{member.label} has posted {describe(operation)} {now.ago(operation['at'])}, and it has not begun: its "
            "links are being made, or a master is being sought."
            for operation in member.unnamed
        ]
    return sentences


def _judge_one(members: list[Member], key: Key, now: _Now) -> list[str]:
    inside = [member for member in members if key in member.operations]
    waiting = [member for member in inside if member.operations[key]["ended"] is None]
    operation = waiting[0].operations[key]
    since = min(member.operations[key]["at"] for member in waiting)
    expected, unread = _expected(members, waiting[0], operation)
    missing = [member for member in expected if not member.has_entered(key) and member.knows(since)]
    sentences = [
        f"{member.label} has not entered {describe(operation)}, in which {together([one.label for one in waiting])} "
        f"{now.waits(len(waiting), since)}; {_state(member, now)}."
        for member in missing
    ]
    disagreement = _disagreement(inside, waiting[0], key)
    sentences += [disagreement] if disagreement else []
    if not sentences and any(not member.has_entered(key) for member in expected):
        return []  # it began after their recordings were read
    if not sentences and unread:
        waits = now.waits(len(waiting), since, f" in {describe(operation)}")
        sentences.append(
            f"{together([one.label for one in waiting])} {waits}; nothing is known of {together(unread)}: read the recordings on "
            "their hosts, too."
        )
    if not sentences:
        dead = [one.label for one in expected if one.recording.runs is False]
        why = f"the process of {together(dead)} has ended" if dead else "look for slow links and members with `pccl top`"
        all_ = operation["members"] or len(inside)
        who = f"All {all_} members" if len(inside) >= all_ else f"{len(inside)} of {all_} members"
        sentences.append(f"{who} entered {describe(operation)} {now.ago(since)}, and it has not ended: {why}.")
    return sentences


def _differs(mine: Event, theirs: Event) -> bool:
    compared = [name for name in ARGUMENTS if name != "count" or mine["collective"] not in OWN_COUNT]
    return any(mine[name] != theirs[name] for name in compared)


def _judge_calls(members: list[Member], now: _Now) -> list[str]:
    names = {call["name"] for member in members for call in member.calls}
    sentences = []
    for name in sorted(names - {"connect"}):
        inside = [member for member in members if any(call["name"] == name for call in member.calls)]
        waiting = {member.label: call for member in inside for call in member.calls if call["name"] == name}
        since = min(call["at"] for call in waiting.values())
        # Members that were lost before need not call it.
        known = [member.others for member in inside if member.recording.short in member.others]
        missing = [
            one
            for one in members
            if one.label not in waiting and not one.recording.closed and one.knows(since)
            if not known or any(one.recording.short in others for others in known)
        ]
        who = together(list(waiting))
        sentences += [
            f"{member.label} has not called {name}, in which {who} {now.waits(len(waiting), since)}; {_state(member, now)}."
            for member in missing
        ]
        if not missing:
            sentences.append(f"{who} {now.waits(len(waiting), since, ' in ' + name)}.")
    return sentences
