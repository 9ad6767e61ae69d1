"""How the processes of a job find each other: through torch's store, which is used for nothing else.

1. Each rank writes down where it runs, and reads where all the others do.
2. Unless PCCL_MASTER names masters, the first ranks of up to three nodes each start one: the master on the first node, standbys
   on the others. On a single node the first rank starts both. The run so has no single process that it depends on, and with
   three nodes or more no single node. If all ranks are on one host and PCCL_KEYS names no keys, rank 0 makes some for the job;
   the store has the path of their folder alone.
3. All connect, and write down the ids that they have in the run, which makes the table of ranks.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pccl import _native
from pccl._address import parse_endpoints
from pccl._calls import Deadline
from pccl._communicator import Communicator
from pccl._credentials import environment_has_some
from pccl._errors import ConnectError, PCCLError, PCCLTimeoutError, Result
from pccl._files import open_log
from pccl._keys import KeysError
from pccl._master import RunState, run_state
from pccl._own_keys import INSECURE_VARIABLE, OwnKeys, check_folder, why_plain
from pccl._supervisor import JOINED, KEYS, restore_environment
from pccl._waits import FIRST_SECONDS, WaitLog, tell_supervisor

if TYPE_CHECKING:
    import torch.distributed as dist

MASTERS_MOST = 3
"""A master and standbys that a job starts by itself, each on a node of its own; on a single node there are two."""

UNTIL_EMPTY_SECONDS = 15
"""After which a master that a job has started ends when nobody is there: longer than peers take to notice that another master
is silent and to come to this one."""

LISTENS = "pccl master listening on "
"""What the program of a master prints once it does."""

ATTEMPTS = 1000
"""To connect; the deadline comes first."""

FIRST_ATTEMPTS = 5
"""To connect to masters that run here, and that are only late where they do not answer."""

BEGIN_PART = 0.8
"""Of what is left of the timeout, after which rank 0 gives up, so that the others hear of it within theirs."""

GRACE_PART = 0.1
"""Of the timeout, for which ranks may disagree: the place of a rank may be that of an earlier attempt."""

JOIN = "join"
"""What rank 0 tells the others where the run goes on without them."""

_masters = ""
_keys = ""
_to_join = ""
_to_begin = False
_acts_alone = False
_meant: tuple[str, str] | None = None
_warned = False


class BootstrapError(PCCLError, RuntimeError):
    """The processes of a job did not find each other; nothing of the group was made."""

    def __init__(self, detail: str) -> None:
        super().__init__(Result.MASTER_CONNECTION_FAILED, "init_process_group", detail)


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
    keys: bool
    """Whether the environment names keys or a certificate."""
    membership: str = "elastic"
    token: str = field(default_factory=lambda: uuid4().hex)
    """Names this call of init_process_group: the store may hold what earlier ones wrote."""


def masters() -> str:
    """The masters of the run that this process belongs to, as `join` and PCCL_MASTER take them; "" before there is one."""
    return _masters


def keys() -> str:
    """The file of keys of that run, as `join` and PCCL_KEYS take it; "" without keys, and before there is a run."""
    return _keys


def note_run(addresses: str, path: str) -> None:
    """Keeps what `masters` and `keys` give, and tells it to the supervisor of this process, if any (`pccl.distributed.run`)."""
    global _masters, _keys
    _masters, _keys = addresses, path or os.environ.get("PCCL_KEYS", "")
    if path:
        tell_supervisor(KEYS + path)
    tell_supervisor(addresses)


def to_join() -> str:
    """The masters of a run that this process is to become a member of, by its first `Elastic.sync`; "" for any other process."""
    return _to_join


def is_joining() -> bool:
    """True in a process that has yet to join a run: until its first `Elastic.sync` it is in a group of its own."""
    return bool(_to_join)


def launched_rank() -> int:
    """Returns the rank that the launcher gave this process; -1 without one."""
    return int(text) if (text := os.environ.get("RANK", "")).isdecimal() else -1


def launched_size() -> int:
    """Returns the world size that the launcher gave this process; -1 without one."""
    return int(text) if (text := os.environ.get("WORLD_SIZE", "")).isdecimal() else -1


def require_joined(call: str) -> None:
    """RuntimeError: this process has yet to join a run, so that a collective would be one of itself alone."""
    if _to_join:
        raise RuntimeError(
            f"{call}: this process was started to join the run at {_to_join} and has not joined it yet; "
            "call pccl.distributed.Elastic(model, optimizer, ...).sync() first"
        )


def act_alone() -> None:
    """From now on a process with fixed membership makes all calls by itself until it joins: errors are for scripts of pccl."""
    global _acts_alone
    _acts_alone = True


def acts_alone() -> bool:
    """Whether `act_alone` was called."""
    return _acts_alone


def to_begin() -> bool:
    """Whether it may begin the run that it is to become a member of, if there is none."""
    return _to_begin


def joined() -> None:
    """Notes that it has become one, and tells the supervisor of this process."""
    global _to_join
    _to_join = ""
    tell_supervisor(JOINED)


@contextlib.contextmanager
def meant_to_join(addresses: str | None, *, begin: bool = False, keys: str = "") -> Iterator[None]:
    """In this block `connect` is told to join the run of these masters; None: of those that PCCL_MASTER names.

    `keys` is a file of keys; "": that of PCCL_KEYS, if any.
    """
    global _meant, _to_begin
    _to_begin = begin
    _meant = (addresses if addresses is not None else os.environ.get("PCCL_MASTER", "")), keys
    try:
        yield
    finally:
        _meant = None


def connect(
    store: dist.Store, rank: int, world_size: int, timeout: timedelta, name: str | None = None, membership: str = "elastic"
) -> tuple[Communicator, tuple[UUID, ...]]:
    """Connects this process to its job; gives the communicator and the ids of all ranks, in the order of the ranks.

    A process that is to join a run that goes on is alone until its first `Elastic.sync`: its communicator is not connected, and
    there is one id. That is one in which `join` was called, which has PCCL_JOIN=1, or which torchrun has started anew while
    the run at PCCL_MASTER goes on. BootstrapError: what is missing, or what the ranks disagree about, and what to do; at the
    latest after `timeout`.
    """
    if _meant is not None:
        return _newcomer(*_meant, name)
    if os.environ.get("PCCL_JOIN", "") == "1":
        made = _newcomer(os.environ.get("PCCL_MASTER", ""), "", name)
        restore_environment()
        return made
    board = _Board(store, rank, world_size, Deadline(timeout.total_seconds()), timeout)
    place = _own_place(store, world_size, membership)
    _warn_without_supervisor(rank)
    places = board.meet(place)
    given = next((one.masters for one in places if one.masters), "")
    if given and not place.masters and not place.keys and not why_plain():  # anybody may have written it to the store
        text = f"rank {rank} has no PCCL_MASTER, and another rank names {given}; give all ranks the same"
        raise BootstrapError(text)
    with contextlib.ExitStack() as held:
        job = _Job(given) if given else _start_masters(board, places, held)
        comm = Communicator(job.masters, name=name, keys=job.peer_keys or None)
        try:
            if _join_run(comm, board, job) == JOIN:
                comm.close()
                return _newcomer(job.masters, job.peer_keys, name)
            members = tuple(UUID(text) for text in board.exchange("member", str(comm.uuid)))
        except BaseException:
            comm.close()
            raise
    note_run(job.masters, job.peer_keys)
    return comm, members


def _newcomer(addresses: str, path: str, name: str | None) -> tuple[Communicator, tuple[UUID, ...]]:
    """A communicator that is to be connected later, and a group of this process alone."""
    global _to_join
    if not addresses:
        raise BootstrapError("a process that joins needs the masters of the run: PCCL_MASTER=host:port, or join('host:port')")
    try:
        comm = Communicator(addresses, name=name, keys=path or None)
    except (ValueError, AssertionError) as error:
        raise BootstrapError(f"the masters of the run to join: {error}") from None
    _to_join = addresses
    note_run(addresses, path)
    return comm, (uuid4(),)


# ---- the store ----


class _Board:
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
        self._told: dict[str, str] = {}  # by this rank, which need not ask the store for it
        self.log = WaitLog("init_process_group")

    def meet(self, place: Place) -> list[Place]:
        """Begins an attempt with all other ranks. Returns the place of each."""
        try:
            self._store.set(_place_key(self.rank), json.dumps(asdict(place)))
            attempt = self._lead(place) if self.rank == 0 else self._follow(place)
        except RuntimeError as error:  # DistStoreError and DistNetworkError
            if isinstance(error, BootstrapError):
                raise
            raise BootstrapError(self._missing("place", error)) from None
        self._attempt = attempt["name"]
        return [_read(text) for text in attempt["places"]]

    def _lead(self, own: Place) -> dict[str, Any]:
        """At rank 0: names attempts until all ranks take part in one."""
        ranks = range(1, self.world_size)
        self._wait([_place_key(rank) for rank in ranks], self._not_called)
        attempt: dict[str, Any] = {"places": []}
        wrong_since = 0.0
        for _ in self._pauses():
            places = [self._store.get(_place_key(rank)).decode() for rank in range(self.world_size)]
            if places != attempt["places"]:
                attempt = {"name": uuid4().hex, "places": places, "problem": _problem(places, own)}
                wrong_since = time.monotonic()
                if not attempt["problem"]:
                    self._store.set(_ATTEMPT_KEY, json.dumps(attempt))
            if attempt["problem"]:
                if time.monotonic() - wrong_since > GRACE_PART * self._timeout.total_seconds():
                    self._store.set(_ATTEMPT_KEY, json.dumps(attempt))
                    raise BootstrapError(attempt["problem"])
            elif not ranks or self._store.check([_key(attempt["name"], "here", rank) for rank in ranks]):
                self._store.set(_key(attempt["name"], "all", 0), "")
                return attempt
        raise BootstrapError(self._missing("place", None))

    def _follow(self, own: Place) -> dict[str, Any]:
        """At other ranks: takes part in the attempts that rank 0 names, until one begins."""
        self._wait([_ATTEMPT_KEY], self._not_called)
        name = ""
        for _ in self._pauses():
            attempt = json.loads(self._store.get(_ATTEMPT_KEY))
            if own.token in (_read(text).token for text in attempt["places"]):
                if attempt["problem"]:
                    raise BootstrapError(attempt["problem"])
                if name != attempt["name"]:
                    name = attempt["name"]
                    self._store.set(_key(name, "here", self.rank), "")
                if self._store.check([_key(name, "all", 0)]):
                    return dict(attempt)
        raise BootstrapError(self._missing("place", None))

    def _wait(self, keys: list[str], waits_for: Callable[[], str]) -> None:
        """Waits until the store has the keys; logs after 10 s whom it waits for."""
        while keys:
            left = self.deadline.remaining() or 0.0
            try:
                self._store.wait(keys, timedelta(seconds=max(0.001, min(left, FIRST_SECONDS))))
                return
            except RuntimeError:
                if self.deadline.passed():
                    raise
                self._store.check(keys)  # raises if the store is lost
                self.log.tell(waits_for())

    def _pauses(self) -> Iterator[None]:
        """Yields until the deadline, at growing intervals; logs after 10 s which ranks are missing."""
        pause = 0.001
        while not self.deadline.passed():
            yield
            if self.log.is_due():
                self.log.tell(self.not_here())
            self.deadline.sleep(pause)
            pause = min(2 * pause, 0.05)

    def exchange(self, name: str, text: str) -> list[str]:
        """Tells all ranks a text. Returns that of each."""
        self.tell(name, self.rank, text)
        return [self.read(name, rank, rank) for rank in range(self.world_size)]

    def tell(self, name: str, number: int, text: str) -> None:
        """Writes a text that all ranks can read."""
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
            return str(self._store.get(key).decode())
        except RuntimeError as error:  # DistStoreError and DistNetworkError
            raise BootstrapError(self._missing(name, error, f"rank {writer}")) from None

    def has_told(self, name: str, rank: int) -> bool:
        """Returns whether a rank has told a text. False if the store is lost."""
        try:
            return bool(self._store.check([_key(self._attempt, name, rank)]))
        except RuntimeError:
            return False

    def not_here(self) -> str:
        """Returns which ranks have not called init_process_group, or else do not take part in this attempt."""
        return self._not_called() if self._away() else "all ranks have called init_process_group, but not all have met"

    def _not_called(self) -> str:
        return f"{_ranks(self._away(), self.world_size)} not called init_process_group"

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
        there = [_read(self._store.get(_place_key(rank)).decode()) for rank in range(self.world_size) if rank not in away]
        others = {place.world_size for place in there} - {self.world_size}
        if others:
            return _disagree(self.world_size, self.rank, min(others), "others")
        if not away:
            return f"rank {self.rank} has waited {limit} for the other ranks, which have ended or hang: see what the others print"
        return f"after {limit}, {self._not_called()}: start them, or give all ranks a smaller world size"


def _ranks(ranks: Sequence[int], world_size: int) -> str:
    """Returns ranks as the subject of a sentence in the perfect tense."""
    listed = ", ".join(str(rank) for rank in ranks)
    return f"ranks {listed} of {world_size} have" if len(ranks) != 1 else f"rank {listed} of {world_size} has"


_ATTEMPT_KEY = "pccl/attempt"


def _place_key(rank: int) -> str:
    return f"pccl/place/{rank}"


def _key(attempt: str, name: str, number: int) -> str:
    return f"pccl/{attempt}/{name}/{number}"


def _read(text: str) -> Place:
    return Place(**json.loads(text))


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
        if other.membership != own.membership:
            text = f'rank 0 has the membership "{own.membership}" and rank {rank} "{other.membership}"'
            return f"{text}; give all ranks the same Options(membership=) or PCCL_MEMBERSHIP"
        if other.keys != own.keys:
            has, lacks = (0, rank) if own.keys else (rank, 0)
            return f"rank {has} has PCCL_KEYS, and rank {lacks} has not; give all ranks the keys of the run, or none"
    return ""


def _disagree(own: int, rank: int, other: int, who: str) -> str:
    return f"rank {rank} was started with a world size of {own}, {who} with {other}; give all ranks the same WORLD_SIZE"


# ---- where this process is ----


def _own_place(store: dist.Store, world_size: int, membership: str = "elastic") -> Place:
    given = os.environ.get("PCCL_MASTER", "")
    if given:
        parse_endpoints(given)  # what is wrong with it is said at once
    return Place(
        world_size=world_size,
        node=f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '0')}",
        network=_network(),
        address=_own_address(_host_of(store)),
        masters=given,
        keys=environment_has_some(),
        membership=membership,
    )


def _network() -> str:
    """The network namespace of this process, and the kernel that it is in."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def _host_of(store: dist.Store) -> str:
    """Where the store is served; "" for one that is not served over a network."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


def _own_address(host: str) -> str:
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


# ---- masters ----


@dataclass(frozen=True)
class _Job:
    """The masters of a job, and the keys that the job has made."""

    masters: str
    own: Sequence[str] = ()
    """The masters that this rank has started."""
    master_keys: str = ""
    peer_keys: str = ""
    """Files; "": those of PCCL_KEYS, or none."""


def _start_masters(board: _Board, places: Sequence[Place], held: contextlib.ExitStack) -> _Job:
    """Starts those masters of the job that this rank has to. At rank 0, `held` keeps the keys of the job in their folder."""
    starters = _starters([place.node for place in places])
    local = len({place.network for place in places}) == 1
    master_keys, peer_keys = ("", "") if environment_has_some() else _share_keys(board, held, local=local)
    own = [number for number, rank in enumerate(starters) if rank == board.rank]
    with contextlib.ExitStack() as stack:
        for number in own:
            address = "127.0.0.1" if local else places[board.rank].address
            board.tell("master", number, f"{address}:{_reserve(stack, address)}")
        listed = [board.read("master", number, rank) for number, rank in enumerate(starters)]
        for number in own:
            problem = _start_master(listed[number], ",".join(listed), board.deadline, new=True, keys=master_keys)
            board.tell("started", number, problem)
    for number, rank in enumerate(starters):
        problem = board.read("started", number, rank)
        if problem:
            raise BootstrapError(f"rank {rank} could not start the master {listed[number]}: {problem}")
    return _Job(",".join(listed), [listed[number] for number in own], master_keys, peer_keys)


def _share_keys(board: _Board, held: contextlib.ExitStack, *, local: bool) -> tuple[str, str]:
    """Makes keys for the job at rank 0. Returns the paths of the files for masters and for peers; "" without encryption.

    Believes nothing of what anybody else may have written to the store. `local`: all ranks say that they are on one host.
    """
    plain = why_plain()
    if not local:
        if plain:
            return "", ""
        raise BootstrapError(
            "the ranks are on several hosts, and the job has no keys: run `pccl keys run`, copy run.master to all hosts, and "
            f"give all ranks PCCL_KEYS=run.master; or give them {INSECURE_VARIABLE}=1 in a network that you trust"
        )
    if board.rank == 0:
        folder, problem = "", plain
        if not plain:
            try:
                folder = str(held.enter_context(OwnKeys()).folder)
            except (OSError, KeysError, PCCLError) as error:
                problem = str(error)
        board.tell("keys", 0, json.dumps([folder, problem]))
    folder, problem = json.loads(board.read("keys", 0, 0))
    if folder:
        try:
            return check_folder(folder)
        except (OSError, KeysError) as error:
            problem = str(error)
    elif plain:
        return "", ""
    raise BootstrapError(
        f"rank {board.rank} has no keys that rank 0 made for this job: {problem}. Give all ranks PCCL_KEYS=RUN.master, a file "
        f"that `pccl keys RUN` writes, or {INSECURE_VARIABLE}=1 to do without encryption"
    )


def _starters(nodes: Sequence[str]) -> list[int]:
    """Which rank starts each of the masters: the first one of its node."""
    first = {node: rank for rank, node in reversed(list(enumerate(nodes)))}
    ranks = sorted(first.values())[:MASTERS_MOST]
    return ranks if len(ranks) > 1 else [0, 0]


def _reserve(stack: contextlib.ExitStack, address: str) -> int:
    """A port that nobody else gets until the stack is left; a master may listen on it meanwhile."""
    host = address.strip("[]")
    held = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    port: int = held.getsockname()[1]
    return port


def _start_master(address: str, listed: str, deadline: Deadline, *, new: bool = False, keys: str = "") -> str:
    """Starts a master as a process of its own. Returns "" once it listens, or what went wrong.

    `new`: nobody was ever at this address, so nobody has to wait for members of an earlier run. `keys`: those that the job has
    made; the last master removes them.

    The master outlives this process, keeps none of its files open, and ends by itself once nobody is there. Its log goes to the
    file named by PCCL_MASTER_LOG, if there is one.
    """
    log = os.environ.get("PCCL_MASTER_LOG")
    try:
        target = open_log(log) if log else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        return f"it cannot write its log to {log}: {error.strerror}"
    command = [str(Path(_native.__file__).with_name("spawned_master")), "--log", str(target)]
    command += ["--leave", "--until-empty", str(1000 * UNTIL_EMPTY_SECONDS), "--listen", address, "--masters", listed]
    command += ["--new"] if new else []
    command += ["--keys", keys, "--own-keys"] if keys else []
    try:
        begun = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(target,),
            timeout=deadline.remaining(),
        )
    except subprocess.TimeoutExpired:
        return "it did not listen within the timeout of init_process_group"
    except OSError as error:
        return str(error)
    finally:
        os.close(target)
    said = begun.stdout.strip()
    return "" if LISTENS in said else said or f"it ended without a word (status {begun.returncode})"


# ---- the run ----


def _join_run(comm: Communicator, board: _Board, job: _Job) -> str:
    """Returns once all ranks are members of one run, and nobody else; or JOIN, where there is one that they shall join.

    Rank 0 goes first: it must find nobody there.
    """
    addresses = job.masters
    if board.rank == 0:
        problem = (
            JOIN if not job.own and _restarted() and run_state(addresses) is RunState.SERVED else _begin_run(comm, board, job)
        )
        board.tell("run", 0, problem)
    else:
        problem = board.read("run", 0, 0)
    if problem == JOIN:
        return JOIN
    if problem:
        raise BootstrapError(problem)

    def not_here() -> str:
        away = [rank for rank in range(board.world_size) if not board.has_told("connected", rank)]
        return f"{_ranks(away, board.world_size)} not joined the run at {addresses}"

    try:
        if board.rank != 0:
            _patiently(board, functools.partial(comm.connect, ATTEMPTS), not_here)
        board.tell("connected", board.rank, "")
        _patiently(board, functools.partial(comm.wait_for_peers, board.world_size), not_here)
        # A vote: when it has ended, all are in the epoch that has all of them, and a standby can take it up without rank 0.
        _patiently(board, comm.are_peers_pending, lambda: "not all ranks have voted")
    except PCCLTimeoutError as error:
        text = f"rank {board.rank} has waited at the master {addresses} for the timeout of init_process_group: {error.detail}"
        raise BootstrapError(text) from None
    except PCCLError as error:
        raise BootstrapError(f"rank {board.rank} cannot connect to the master {addresses}: {error}") from None
    return ""


def _patiently(board: _Board, call: Callable[..., object], waits_for: Callable[[], str]) -> None:
    """Makes a call that takes a timeout and may be repeated after it; logs every 10 s, then every minute, for whom it waits."""
    while True:
        left = board.deadline.remaining() or 0.0
        try:
            call(timeout=min(left, FIRST_SECONDS / 2))
            return
        except PCCLTimeoutError:
            if board.deadline.passed():
                raise
            if board.log.is_due():
                board.log.tell(waits_for())


def _connect_first(comm: Communicator, job: _Job, deadline: Deadline) -> None:
    """Connects to masters that listen, or have ended for want of a peer, where processes get very little of a processor.

    One that answers too late is passed over for a standby, which begins no run.
    """
    failed = 0
    while True:
        try:
            comm.connect(2, timeout=deadline.remaining())
            return
        except ConnectError:
            restarted = [_start_master(one, job.masters, deadline, keys=job.master_keys) == "" for one in job.own]
            failed += not any(restarted)
            if failed == FIRST_ATTEMPTS:
                raise


def _warn_without_supervisor(rank: int) -> None:
    """Warns once if torchrun, which ends a job when one of its processes dies, started this process without a supervisor."""
    global _warned
    if rank == 0 and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("PCCL_SUPERVISED") != "1" and not _warned:
        _warned = True
        warnings.warn(
            "torchrun ends the whole job when one of its processes dies: to survive that, launch it as "
            "`torchrun ... -m pccl.distributed.run script.py`, or call pccl.distributed.supervise() first",
            RuntimeWarning,
            stacklevel=2,
        )


def _restarted() -> bool:
    """Whether torchrun has started the processes of this job anew."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def _wrong_limits(world_size: int) -> str:
    """Returns why a job of this size would wait in vain with the numbers of members that the environment permits, or ""."""
    least, most = (os.environ.get(name, "") for name in ("PCCL_MIN_MEMBERS", "PCCL_MAX_MEMBERS"))
    if most.isdecimal() and 0 < int(most) < world_size:
        return (
            f"PCCL_MAX_MEMBERS={most} is less than the world size {world_size}; raise it, or start fewer processes, and spares "
            "with pccl.distributed.join()"
        )
    if least.isdecimal() and int(least) > world_size:
        return f"PCCL_MIN_MEMBERS={least} is more than the world size {world_size}; lower it, or start more processes"
    return ""


def _begin_run(comm: Communicator, board: _Board, job: _Job) -> str:
    """Connects the first member of the run; gives "" or what went wrong."""
    problem = _wrong_limits(board.world_size)
    if problem:
        return problem
    addresses = job.masters
    limit = board.deadline.remaining()
    limit = None if limit is None else limit * BEGIN_PART
    try:
        if job.own:
            _connect_first(comm, job, Deadline(limit))
        else:
            comm.connect(ATTEMPTS, timeout=limit)
    except PCCLTimeoutError as error:
        return (
            f"rank 0 cannot begin a run at the master {addresses}: {error.detail}. Start one there with `pccl master`, or leave "
            "PCCL_MASTER out. If it serves another job, name a run of its own: PCCL_MASTER=host:port/name"
        )
    except PCCLError as error:
        return f"rank 0 cannot connect to the master {addresses}: {error}"
    there = comm.global_world_size
    if there == 1:
        return ""
    return (
        f"the master {addresses} serves another job (members: {there - 1}); name a run of its own: PCCL_MASTER=host:port/name. "
        "A process joins a run that goes on by pccl.distributed.join()"
    )
