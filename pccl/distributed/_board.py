"""What the ranks of a job tell each other through torch's store: first of all where they are."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pccl._core.address import parse_endpoints
from pccl._core.calls import Deadline
from pccl._core.errors import PCCLError, PCCLTimeoutError, Result
from pccl._exports import publish
from pccl._host.bounded import read_json
from pccl._host.waits import FIRST_SECONDS, WaitLog
from pccl._run.credentials import environment_has_some
from pccl._run.keys import KeysError, fingerprint, read_file

if TYPE_CHECKING:
    import torch.distributed as dist

GRACE_PART = 0.1
"""Of the timeout, for which ranks may disagree: the place of a rank may be that of an earlier attempt."""

LEAST_PAUSE, MOST_PAUSE = 0.001, 0.05
"""Seconds between two looks into the store; the longest for up to MANY_RANKS, and longer in proportion for more."""

MANY_RANKS = 64

PLACE_BYTES, ATTEMPT_BYTES = 1 << 14, 1 << 24
"""Of what a rank tells of itself, as JSON, and of what rank 0 tells of all."""

NO_MESSAGE = "the store of init_process_group has something else than what a rank writes; give the job a store of its own"

PAUSE_PART = 0.125
"""Of the wait so far, for which the next pause lasts."""


class BootstrapError(PCCLError, RuntimeError):
    """The processes of a job did not find each other; nothing of the group was made."""

    def __init__(self, detail: str, result: Result = Result.INVALID_USAGE) -> None:
        super().__init__(result, "init_process_group", detail)


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a rank tells the others of itself."""

    world_size: int
    node: str
    """Processes with the same one end together when their machine does."""
    network: str
    """Processes with the same one reach each other at 127.0.0.1."""
    address: str
    """Where others reach the machine."""
    masters: str
    """PCCL_MASTER, or ""."""
    keys: str
    """The fingerprint of the master's key in the file that PCCL_KEYS names; "?" for a certificate; "" for neither."""
    membership: str = "elastic"
    stands_in: bool = False
    token: str = field(default_factory=lambda: uuid4().hex)
    """Names this call of init_process_group: the store may hold what earlier ones wrote."""


def own_place(store: dist.Store, world_size: int, membership: str = "elastic", *, stands_in: bool = False) -> Place:
    given = os.environ.get("PCCL_MASTER", "")
    if given:
        try:
            parse_endpoints(given)  # what is wrong with it is said at once
        except ValueError as error:
            raise BootstrapError(f"PCCL_MASTER: {error}") from None
    return Place(
        world_size=world_size,
        node=f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '0')}",
        network=_network(),
        address=own_address(host_of(store)),
        masters=given,
        keys=_fingerprint(),
        membership=membership,
        stands_in=stands_in,
    )


def _fingerprint() -> str:
    try:
        return fingerprint(read_file(os.environ.get("PCCL_KEYS", ""))[1].master_public)
    except KeysError:  # what is wrong with a file is said by who uses it
        return "?" if environment_has_some() else ""


def _network() -> str:
    """The network namespace of this process, and the kernel that it is in."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def host_of(store: dist.Store) -> str:
    """Where the store is served; "" for one that is not served over a network."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


def own_address(host: str) -> str:
    """The address of this machine towards `host`, else that towards the world; a loopback address if it has no other."""
    found = "127.0.0.1"
    for target in (host, "192.0.2.1", "2001:db8::1"):  # the last two are reserved: nothing is sent
        with contextlib.suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(target or "localhost", 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                found = probe.getsockname()[0]
            if not found.startswith("127.") and found != "::1":
                break
    return f"[{found}]" if ":" in found else found


class Board:
    """What the ranks tell each other through the store.

    The store may hold what an earlier attempt wrote: torchrun keeps one store for all its restarts, and a process may call
    init_process_group again. So the ranks first agree on an attempt, whose name all other keys carry. Each writes a place with a
    token that is new. Rank 0 names an attempt by the tokens that it has read. A rank takes part in an attempt that has its own
    token, and the attempt begins when all ranks do; rank 0 names another one if a place changes before.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, deadline: Deadline, timeout: timedelta) -> None:
        self.rank = rank
        self.world_size = world_size
        self.deadline = deadline
        self._store = store
        self._timeout = timeout
        self._attempt = ""
        self._token = ""  # of the place that this rank has written
        self._told: dict[str, str] = {}  # by this rank, which need not ask the store for it
        self.log = WaitLog("init_process_group")

    def meet(self, place: Place) -> list[Place]:
        """Begins an attempt with all other ranks. Returns the place of each."""
        self._token = place.token
        try:
            self._store.set(_place_key(self.rank), json.dumps(asdict(place)))
            attempt = self._lead(place) if self.rank == 0 else self._follow()
        except RuntimeError as error:  # DistStoreError and DistNetworkError
            if isinstance(error, BootstrapError):
                raise
            raise BootstrapError(self._missing("place", error), Result.TIMED_OUT) from None
        self._attempt = attempt["name"]
        return [_read(text) for text in attempt["places"]]

    def _lead(self, own: Place) -> dict[str, Any]:
        """At rank 0: names attempts until all ranks take part in one."""
        ranks = range(1, self.world_size)
        self._wait([_place_key(rank) for rank in ranks], self._not_met)
        attempt: dict[str, Any] = {"places": []}
        wrong_since = 0.0
        for _ in self._pauses(self._not_met):
            places = [self._get(_place_key(rank)) for rank in range(self.world_size)]
            if places != attempt["places"]:
                attempt = {"name": uuid4().hex, "places": places, "problem": _problem(places, own)}
                wrong_since = time.monotonic()
                if not attempt["problem"]:
                    self._store.set(_ATTEMPT_KEY, json.dumps(attempt))
                self._store.set(_DOUBT_KEY, json.dumps(attempt))
            if attempt["problem"]:
                if time.monotonic() - wrong_since > GRACE_PART * self._timeout.total_seconds():
                    self._store.set(_ATTEMPT_KEY, json.dumps(attempt))
                    raise BootstrapError(attempt["problem"])
            elif not ranks or self._store.check([_key(attempt["name"], "here", rank) for rank in ranks]):
                self._store.set(_key(attempt["name"], "all", 0), "")
                return attempt
        raise BootstrapError(self._missing("place", None), Result.TIMED_OUT)

    def _follow(self) -> dict[str, Any]:
        """At other ranks: takes part in the attempts that rank 0 names, until one begins."""
        self._wait([_ATTEMPT_KEY], self._not_met)
        name = ""
        for _ in self._pauses(self._not_met):
            attempt = _attempt(self._get(_ATTEMPT_KEY))
            if self._is_in(attempt):
                if attempt["problem"]:
                    raise BootstrapError(attempt["problem"])
                if name != attempt["name"]:
                    name = attempt["name"]
                    self._store.set(_key(name, "here", self.rank), "")
                if self._store.check([_key(name, "all", 0)]):
                    return attempt
        raise BootstrapError(self._missing("place", None), Result.TIMED_OUT)

    def _is_in(self, attempt: dict[str, Any]) -> bool:
        return self._token in (_read(text).token for text in attempt["places"])

    def _wait(self, keys: list[str], waits_for: Callable[[], str]) -> None:
        """Waits until the store has the keys; logs after 10 s whom it waits for. RuntimeError: it has not, or is lost.

        The store's own `wait` does not hear Ctrl-C, and prints stacks when it ends without the keys.
        """
        for _ in self._pauses(waits_for):
            if not keys or self._store.check(keys):
                return
        raise RuntimeError("the timeout has passed")

    def _pauses(self, waits_for: Callable[[], str]) -> Iterator[None]:
        """Yields at growing intervals, and once after the deadline; logs after 10 s whom it waits for."""
        began = time.monotonic()
        longest = MOST_PAUSE * max(1.0, self.world_size / MANY_RANKS)
        while not self.deadline.passed():
            yield
            if self.log.is_due():
                self.log.tell(waits_for())
            self.deadline.sleep(min(max(LEAST_PAUSE, PAUSE_PART * (time.monotonic() - began)), longest))
        yield

    def patiently(self, call: Callable[..., object], waits_for: Callable[[], str]) -> None:
        """Makes a call that takes a timeout and may be repeated after it; logs as `_pauses` for whom it waits."""
        while True:
            left = self.deadline.remaining() or 0.0
            try:
                call(timeout=min(left, FIRST_SECONDS / 2))
                return
            except PCCLTimeoutError:
                if self.deadline.passed():
                    raise
                if self.log.is_due():
                    self.log.tell(waits_for())

    def exchange(self, name: str, text: str) -> list[str]:
        """Tells all ranks a text. Returns that of each."""
        self.tell(name, self.rank, text)
        return [self.read(name, rank, rank) for rank in range(self.world_size)]

    def tell(self, name: str, number: int, text: str) -> None:
        key = _key(self._attempt, name, number)
        self._told[key] = text
        try:
            self._store.set(key, text)
        except RuntimeError as error:
            raise BootstrapError(f"rank {self.rank} cannot write to the store of init_process_group: {error}") from None

    def read(self, name: str, number: int, writer: int) -> str:
        """Returns a text that the rank `writer` writes, or has written."""
        key = _key(self._attempt, name, number)
        if key in self._told:
            return self._told[key]
        try:
            self._wait([key], lambda: f"rank {self.rank} waits for rank {writer}")
            return self._get(key)
        except RuntimeError as error:  # DistStoreError and DistNetworkError
            raise BootstrapError(self._missing(name, error, f"rank {writer}"), Result.TIMED_OUT) from None

    def _get(self, key: str) -> str:
        return str(self._store.get(key).decode(errors="replace"))

    def has_told(self, name: str, rank: int) -> bool:
        """Returns whether a rank has told a text. False if the store is lost."""
        try:
            return bool(self._store.check([_key(self._attempt, name, rank)]))
        except RuntimeError:
            return False

    def _not_met(self) -> str:
        """Returns which ranks have not called init_process_group, or what rank 0 says that the ranks disagree about.

        BootstrapError: another process has this rank, so that one rank is never there.
        """
        other = _read(self._get(_place_key(self.rank)))
        if other.token != self._token:
            raise BootstrapError(
                f"rank {self.rank} of {self.world_size} is there twice: another process at {other.address} has it, too; give "
                "each process its own RANK"
            )
        away = self._away()
        if away:
            return self._not_called(away)
        if self._store.check([_DOUBT_KEY]):
            doubt = _attempt(self._get(_DOUBT_KEY))
            if doubt["problem"] and self._is_in(doubt):
                return str(doubt["problem"])
        return "all ranks have called init_process_group, but not all have met"

    def _not_called(self, away: Sequence[int]) -> str:
        return f"{listed_ranks(away, self.world_size)} not called init_process_group"

    def _away(self) -> list[int]:
        return [rank for rank in range(self.world_size) if not self._store.check([_place_key(rank)])]

    def _missing(self, name: str, error: RuntimeError | None, whom: str = "the other ranks") -> str:
        limit = f"{self._timeout.total_seconds():g} s (the timeout of init_process_group)"
        try:
            away = self._away()
        except RuntimeError:
            return f"rank {self.rank} has lost the store of init_process_group, which rank 0 or its launcher serves: {error}"
        if name != "place":
            return f"rank {self.rank} has waited {limit} for {whom}, which has ended or hangs: see what it prints"
        there = [_read(self._get(_place_key(rank))) for rank in range(self.world_size) if rank not in away]
        others = {place.world_size for place in there} - {self.world_size}
        if others:
            return _disagree(self.world_size, self.rank, min(others), "others")
        if not away:
            return f"rank {self.rank} has waited {limit} for the other ranks, which have ended or hang: see what the others print"
        return f"after {limit}, {self._not_called(away)}: start them, or give all ranks a smaller world size"


def listed_ranks(ranks: Sequence[int], world_size: int) -> str:
    """Returns ranks as the subject of a sentence in the perfect tense."""
    listed = ", ".join(str(rank) for rank in ranks)
    return f"ranks {listed} of {world_size} have" if len(ranks) != 1 else f"rank {listed} of {world_size} has"


_ATTEMPT_KEY = "pccl/attempt"
_DOUBT_KEY = "pccl/doubt"  # the newest attempt, also while its ranks disagree and rank 0 waits for other places


def _place_key(rank: int) -> str:
    return f"pccl/place/{rank}"


def _key(attempt: str, name: str, number: int) -> str:
    return f"pccl/{attempt}/{name}/{number}"


def parsed(text: str, most: int, kinds: Mapping[Any, str]) -> Any:
    """Returns what JSON in the store has under the keys of `kinds`, and no others, whose values are the names of types.

    BootstrapError: it has not; whoever reaches the store may write to it.
    """
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
        found = read_json(text.encode(), most)
        if len(found) == len(kinds) and all(type(found[key]).__name__ == kind for key, kind in kinds.items()):
            return {key: found[key] for key in kinds}
    raise BootstrapError(f"{NO_MESSAGE}: {text!r:.100}")


def _read(text: str) -> Place:
    return Place(**parsed(text, PLACE_BYTES, {one.name: str(one.type) for one in fields(Place)}))


def _attempt(text: str) -> dict[str, Any]:
    found: dict[str, Any] = parsed(text, ATTEMPT_BYTES, {"name": "str", "places": "list", "problem": "str"})
    return found


def _problem(places: Sequence[str], own: Place) -> str:
    """What the ranks disagree about, or ""."""
    for rank, text in enumerate(places):
        other = _read(text)
        if other.world_size != own.world_size:
            return _disagree(own.world_size, 0, other.world_size, f"rank {rank}")
        if other.masters and own.masters and other.masters != own.masters:
            return (
                f"the ranks have different masters: PCCL_MASTER is {own.masters} for rank 0 and {other.masters} for rank {rank}; "
                "give all of them the same"
            )
        for name in ("membership", "stands_in"):
            mine, theirs = getattr(own, name), getattr(other, name)
            if mine != theirs:
                text = f'rank 0 has the {name} "{mine}" and rank {rank} "{theirs}"; give all ranks the same Options({name}=)'
                return text + " or PCCL_MEMBERSHIP" * (name == "membership")
        if bool(other.keys) != bool(own.keys):
            has, lacks = (0, rank) if own.keys else (rank, 0)
            return f"rank {has} has PCCL_KEYS, and rank {lacks} has not; give all ranks the keys of the run, or none"
        if other.keys != own.keys and "?" not in (other.keys, own.keys):
            return (
                f"rank 0 has keys with the fingerprint {own.keys}, and rank {rank} has others, with {other.keys} "
                "(`pccl keys show`); copy one file to all hosts"
            )
    return ""


def _disagree(own: int, rank: int, other: int, who: str) -> str:
    return f"rank {rank} was started with a world size of {own}, {who} with {other}; give all ranks the same WORLD_SIZE"


publish(globals())
