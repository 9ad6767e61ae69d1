"""What a flight recorder has kept: the last events of a peer or a master, from a file of csrc/base/recorder.h.

The file may be one that its process still writes. A record is whole if its serial is the same in three copies. Its marks
(`began`, `ended`) are taken from the first copy and everything else from the second, because a result is written before `ended`.
Anything may be in a file: nothing is believed before it is checked, and texts lose their control characters.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from pccl._core.enums import DataType, ReduceOp
from pccl._core.errors import LossReason, Result
from pccl._core.library import _C, _ffi

MAGIC = b"pcclevt\0"
FORMAT = 1
HEADER_BYTES = 4096
RECORD_BYTES = 128
RECORDS_MOST = 1 << 18

_HEADER = struct.Struct("=8s4IQqIIIIQ16s72s72s72sq")
_RECORD = struct.Struct("=QqqqHBBI")
_OPERATION = struct.Struct("=4QIIIHHBBBBBB32s")
_EVENT = struct.Struct("=QQ16s56s")
_DOUBLE = struct.Struct("=d")
_U64 = struct.Struct("=Q")

OPERATION, CALL = 1, 2
KINDS = {
    1: "operation",
    2: "call",
    3: "epoch",
    4: "joined",
    5: "left",
    6: "vote",
    7: "master_lost",
    8: "master_found",
    9: "selection",
    10: "report",
    11: "takeover",
    12: "died",
}
"""Of `enum recorder_kind`."""

REDUCING = {_C.pcclCollectiveAllReduce, _C.pcclCollectiveReduce, _C.pcclCollectiveReduceScatter}
ROOTED = {
    _C.pcclCollectiveBroadcast,
    _C.pcclCollectiveReduce,
    _C.pcclCollectiveGather,
    _C.pcclCollectiveScatter,
    _C.pcclCollectiveSend,
}

ALGORITHMS = ("small", "ring", "weighted", "sharded", "chain", "pieces")
"""Of `enum plan_algorithm`."""

OUTCOMES = (
    "ok",
    "in progress",
    "lost",
    "mismatch",
    "cancelled",
    "dead",
    "tag in use",
    "too many",
    "out of memory",
    "unknown",
    "refused",
)
"""Of `enum call_result`."""

Event = dict[str, Any]
"""Has `at` (seconds since 1970) and `kind`, as in docs/event-files.md#pccl-dump."""


@functools.lru_cache(1024)  # texts are made once, not for each event
def _name(enum: type[DataType] | type[LossReason] | type[ReduceOp] | type[Result], number: int) -> str:
    try:
        return str(enum(number).name).lower()
    except ValueError:
        return str(number)


@functools.lru_cache(1024)
def _collective(kind: int) -> str:
    name = _ffi.typeof("pcclCollectiveKind_t").elements.get(kind)
    return str(kind) if name is None else re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("pcclCollective")).lower()


def _at(names: tuple[str, ...], place: int) -> str:
    return names[place] if place < len(names) else str(place)


def _text(encoded: bytes) -> str:
    text = encoded.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "?" for one in text)


class RecordingError(Exception):
    """A file has no events, is damaged, or cannot be read."""


class NoRecordingError(RecordingError):
    """There is no file any more, or nothing in it yet: its process has ended, begins, or died when it began."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The content of one file."""

    path: str
    role: str
    """"peer" or "master"."""
    process: int
    host: str
    name: str
    run_name: str
    run: int
    """Number of the run; 0: it was in none."""
    group: int
    uuid: UUID
    opened: float
    """When the file was made, in seconds since 1970."""
    closed: bool
    """The process has closed it."""
    runs: bool | None
    """Whether its process lives; None: it ran on another host."""
    torn: int
    """Records that were being written, now or when the process died."""
    taken: float
    """Nothing that has happened later is in it, in seconds since 1970."""
    events: list[Event] = field(repr=False)
    """The oldest first."""

    @property
    def short(self) -> str:
        return self.uuid.hex[:8]

    @property
    def label(self) -> str:
        """Name, uuid and process, as texts call the member."""
        known = f"{self.short}, " if self.role == "peer" and self.run else ""
        return f"{self.name or self.role} ({known}process {self.process})"

    def head(self) -> Event:
        """The line of JSON that comes before the events."""
        told = {"at": self.opened, "kind": "recording", "format": FORMAT, "member": self.short, "run": self.run_name}
        return told | {
            name: getattr(self, name) for name in ("role", "name", "host", "process", "group", "runs", "closed", "torn")
        }


def read(path: str | os.PathLike[str]) -> Recording:
    """Reads a file, also while its process writes it. RecordingError: it is no such file, or cut off, or cannot be read."""
    return take(path).recording()


def take(path: str | os.PathLike[str]) -> Taken:
    """Copies a file, which takes less time than to make sense of it. RecordingError as `read`."""
    name = os.fspath(path)
    fd = -1
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return _take(name, fd)
    except OSError as error:
        kind = NoRecordingError if isinstance(error, FileNotFoundError) else RecordingError
        raise kind(f"{name} cannot be read: {error.strerror}") from None
    finally:
        if fd >= 0:
            os.close(fd)


class _Header(NamedTuple):
    """As in csrc/base/recorder.c."""

    magic: bytes
    format: int
    header_bytes: int
    record_bytes: int
    records: int
    process: int
    opened_ns: int
    role: int
    closed: int
    changes: int
    group: int
    run: int
    uuid: bytes
    host: bytes
    name: bytes
    run_name: bytes
    opened_monotonic_ns: int


def _header(fd: int) -> _Header:
    return _Header._make(_HEADER.unpack(os.pread(fd, _HEADER.size, 0).ljust(_HEADER.size, b"\0")))


def _stable_header(fd: int) -> _Header:
    """Reads it until its identity is not being changed meanwhile."""
    before = _header(fd)
    for _ in range(100):
        again = _header(fd)
        if again.changes % 2 == 0 and again.changes == before.changes:
            break
        before = again
    return before


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Copies of a file."""

    name: str
    at: float
    monotonic: float
    head: _Header
    copies: list[bytes]
    locked: bool

    def recording(self, *, by_clock_of_now: bool = False) -> Recording:
        """Makes sense of them. `by_clock_of_now`: as if the clock of this host had been as now when a living process began."""
        head = self.head
        host = _text(head.host)
        runs = self.locked if host == socket.gethostname() else None
        opened = head.opened_ns / 1e9
        if by_clock_of_now and runs and head.opened_monotonic_ns:  # 0: a version before wrote it
            opened = self.at - (self.monotonic - head.opened_monotonic_ns / 1e9)
        events, torn = _events(self.copies, head.records, opened)
        return Recording(
            path=self.name,
            role={1: "peer", 2: "master"}.get(head.role, "unknown"),
            process=head.process,
            host=host,
            name=_text(head.name),
            run_name=_text(head.run_name),
            run=head.run,
            group=head.group,
            uuid=UUID(bytes=head.uuid),
            opened=opened,
            closed=head.closed == 1,
            runs=runs,
            torn=torn,
            taken=self.at,
            events=events,
        )


def _take(name: str, fd: int) -> Taken:
    what = os.fstat(fd)
    if not stat.S_ISREG(what.st_mode):
        raise RecordingError(f"{name} is no file; name the files in a folder, as FOLDER/*.events")
    head = _stable_header(fd)
    if not any(head.magic):
        raise NoRecordingError(f"{name} has no events of pccl: nothing is in it")
    if head.magic != MAGIC:
        raise RecordingError(f"{name} has no events of pccl")
    if (head.format, head.header_bytes, head.record_bytes) != (FORMAT, HEADER_BYTES, RECORD_BYTES):
        raise RecordingError(f"{name} is of another version of pccl (format {head.format}); read it with that version")
    if not 1 <= head.records <= RECORDS_MOST:
        raise RecordingError(f"{name} is damaged: its header counts {head.records} records")
    whole = HEADER_BYTES + head.records * RECORD_BYTES
    if what.st_size < whole:
        raise RecordingError(f"{name} is cut off: it has {what.st_size} of {whole} bytes; copy it again")
    at, monotonic = time.time(), time.monotonic()
    copies = [_records(fd, whole) for _ in range(3)]
    if any(len(copy) < whole - HEADER_BYTES for copy in copies):
        raise RecordingError(f"{name} was cut off while it was read; copy it first")
    return Taken(name=name, at=at, monotonic=monotonic, head=head, copies=copies, locked=_is_locked(fd))


def _records(fd: int, whole: int) -> bytes:
    parts, at = [], HEADER_BYTES
    while at < whole:
        part = os.pread(fd, whole - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _is_locked(fd: int) -> bool:
    """Its process holds a lock for as long as it lives."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of with the descriptor
    except BlockingIOError:
        return True
    return False


def _events(copies: list[bytes], records: int, opened: float) -> tuple[list[Event], int]:
    found: list[Event] = []
    torn = 0
    first, second, third = copies
    for place in range(records):
        offset = place * RECORD_BYTES
        serial, *marks = _RECORD.unpack_from(first, offset)
        again = _RECORD.unpack_from(second, offset)
        if serial == 0 or serial != again[0] or serial != _U64.unpack_from(third, offset)[0]:
            torn += serial != again[0] or any(second[offset : offset + RECORD_BYTES])
            continue
        began_ns, ended_ns = marks[1], marks[2]
        _, at_ns, _, _, kind, result, _, _ = again
        event: Event = {"at": opened + at_ns / 1e9, "kind": KINDS.get(kind, str(kind))}
        body = second[offset + _RECORD.size : offset + RECORD_BYTES]
        if kind == OPERATION:
            event |= _operation(body, opened, began_ns, ended_ns, result)
        else:
            event |= _event(kind, body, opened, ended_ns, result)
        found.append(event)
    found.sort(key=lambda event: float(event["at"]))
    return found, torn


def _ending(opened: float, ended_ns: int, error: str | None) -> Event:
    return {"ended": None, "error": None} if ended_ns == 0 else {"ended": opened + ended_ns / 1e9, "error": error}


def _operation(body: bytes, opened: float, began_ns: int, ended_ns: int, result: int) -> Event:
    fields = _OPERATION.unpack_from(body)
    tag, count, size, epoch, sequence, subgroup, root, members, taking_part, kind, dtype, op, codec, algorithm, flags, ids = (
        fields
    )
    began = began_ns != 0
    named = members if subgroup and members <= len(ids) // 4 else 0
    return {
        "collective": _collective(kind),
        "tag": tag,
        "sequence": sequence if began else None,
        "epoch": epoch if began else None,
        "subgroup": subgroup,
        "members": taking_part if began else members or None,
        "ids": [ids[4 * i : 4 * i + 4].hex() for i in range(named)],
        "count": count,
        "dtype": _name(DataType, dtype),
        "op": _name(ReduceOp, op) if kind in REDUCING else None,
        "codec": codec,
        "root": root if kind in ROOTED else None,
        "bytes": size,
        "algorithm": _at(ALGORITHMS, algorithm) if began else None,
        "retry": bool(flags & 1),
        "background": bool(flags & 2),
        "began": opened + began_ns / 1e9 if began else None,
        **_ending(opened, ended_ns, None if result == 0 else _at(OUTCOMES, result)),
    }


def _event(kind: int, body: bytes, opened: float, ended_ns: int, result: int) -> Event:
    a, b, uuid, encoded = _EVENT.unpack_from(body)
    text = _text(encoded)
    match KINDS.get(kind):
        case "call":
            return {"name": text, **_ending(opened, ended_ns, None if result == 0 else _name(Result, result))}
        case "epoch":
            return {"epoch": a, "members": b, "text": text}
        case "joined":
            return {"member": uuid.hex()[:8], "name": text, "epoch": a}
        case "left":
            return {"member": uuid.hex()[:8], "text": text, "epoch": a, "reason": _name(LossReason, b)}
        case "vote":
            return {"name": text, "epoch": a, "members": b}
        case "takeover":
            return {"generation": a, "members": b}
        case "selection":
            return {"text": text}
        case "report":
            value = _DOUBLE.unpack(_U64.pack(a))[0]
            return {"name": text, "value": value if math.isfinite(value) else None}
        case _:
            return {"text": text}


# ---- finding files ----


def places() -> list[str]:
    """The directories in which processes of this user keep their events, if they belong to this user alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    candidates = [f"/dev/shm/pccl-{os.geteuid()}", *([f"{runtime}/pccl"] if runtime.startswith("/") else [])]
    named = os.environ.get("PCCL_EVENTS", "")
    return [path for path in candidates if _is_own(path)] + ([named] if named and os.path.isdir(named) else [])


def _is_own(path: str) -> bool:
    with contextlib.suppress(OSError):
        what = os.lstat(path)
        return stat.S_ISDIR(what.st_mode) and what.st_uid == os.geteuid() and what.st_mode & 0o077 == 0
    return False


def files() -> Iterator[str]:
    """Files of events at the places of this user, the newest first."""
    yield from _newest_first(places())


def files_in(directory: str) -> list[str]:
    """Files of events in a directory, the newest first."""
    return list(_newest_first([directory]))


def _newest_first(directories: list[str]) -> Iterator[str]:
    found: list[os.DirEntry[str]] = []
    for place in directories:
        with contextlib.suppress(OSError):  # this user may not read it
            found += [one for one in os.scandir(place) if one.name.endswith(".events") and one.is_file(follow_symlinks=False)]
    times: dict[str, float] = {}
    for entry in found:
        with contextlib.suppress(OSError):  # its process has just removed it
            times[entry.path] = entry.stat(follow_symlinks=False).st_mtime
    yield from sorted(times, key=lambda path: -times[path])
