"""How the processes of a job find each other, and what of them may die: without a process group, on the communicator alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from performers import PATIENCE, Performer, preload, secrets_of

import pccl
from pccl._core.calls import Deadline
from pccl._host import waits as _waits
from pccl._run import keys as _keys
from pccl._run.own_keys import why_plain
from pccl.distributed import _board, _bootstrap, _own_masters
from pccl.distributed._this_run import this_run

preload(__name__)


class Rank:
    """A rank of a job: what it does until it has a communicator."""

    def __init__(self, pipe: Connection, port: int, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)

    def connect(self, timeout: float = PATIENCE) -> tuple[str, ...] | str:
        """The ids of all ranks, or what went wrong."""
        try:
            self.comm, members = _bootstrap.connect(self.store, self.rank, self.world_size, timedelta(seconds=timeout))
        except _board.BootstrapError as error:
            return str(error)
        assert members[self.rank] == self.comm.uuid
        return tuple(map(str, members))

    def to_join(self) -> str:
        """Whose run it is told to join."""
        comm, members = _bootstrap.connect(self.store, self.rank, self.world_size, timedelta(seconds=PATIENCE))
        assert (comm.alive, len(members)) == (False, 1)
        return this_run.to_join

    def masters(self) -> str:
        return this_run.masters

    def keys(self) -> str:
        return this_run.keys

    def sums(self, count: int) -> int:
        """Makes this many reduces in a row, for which losses are no error; gives the number of those in the last one."""
        for _ in range(count):
            array = np.ones(100, np.float32)
            self.comm.all_reduce(array, op=pccl.ReduceOp.SUM, retry=True, timeout=PATIENCE)
        return int(array[0])

    def update(self) -> int:
        """Waits for the others by way of the master."""
        self.comm.update_topology(timeout=PATIENCE)
        return self.comm.world_size

    def leave(self) -> None:
        self.comm.close()


@contextlib.contextmanager
def job(nodes: list[str], sizes: list[int] | None = None, **environment: str) -> Iterator[list[Performer]]:
    """A rank for each entry, on the node of that name; the store lies in this process."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = []
    try:
        for rank, node in enumerate(nodes):
            size = sizes[rank] if sizes else len(nodes)
            ranks.append(Performer(Rank, rank, (store.port, rank, size), {"GROUP_RANK": node, **environment}))
        yield ranks
    finally:
        for started in ranks:
            started.kill()


def together(ranks: list[Performer], method: str, *arguments: Any) -> list[Any]:
    """What they answer to a call that all of them make at once."""
    for rank in ranks:
        rank.tell(method, *arguments)
    return [rank.answer() for rank in ranks]


def ports(masters: str) -> list[int]:
    return [int(one.rpartition(":")[2]) for one in masters.split(",")]


def master_pids(masters: str) -> list[int]:
    """The processes of the masters, by what they were started with."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            if "--masters" in words and words[words.index("--masters") + 1] == masters:
                found[words[words.index("--listen") + 1]] = int(entry.name)
    return [found[one] for one in masters.split(",")]


def await_end(masters: str) -> None:
    """Until none of them listens any more."""
    limit = time.monotonic() + 2 * PATIENCE
    for port in ports(masters):
        while socket.socket().connect_ex(("127.0.0.1", port)) == 0:
            assert time.monotonic() < limit, f"a master at {port} does not end"
            time.sleep(0.1)


def end_masters(masters: str) -> None:
    for pid in master_pids(masters):
        os.kill(pid, signal.SIGKILL)


def test_ranks_are_those_of_torch():
    with job(["0"] * 3) as ranks:
        answers = together(ranks, "connect")
        assert len(set(answers)) == 1
        assert len(set(answers[0])) == 3
        assert together(ranks, "sums", 1) == [3] * 3
        masters = ranks[0].ask("masters")
        assert len(ports(masters)) == 2
        assert together(ranks, "masters") == [masters] * 3
        end_masters(masters)


def test_masters_outlive_rank_0_and_end_with_the_last_member():
    with job(["0"] * 2) as [first, second]:
        together([first, second], "connect")
        masters = second.ask("masters")
        first.kill()
        second.tell("sums", 1)
        second.answer()
        assert second.ask("update") == 1
        second.ask("leave")
        await_end(masters)


@pytest.mark.parametrize("place", [0, 1])
def test_either_master_of_a_single_node_may_die(place):
    with job(["0"] * 2) as ranks:
        together(ranks, "connect")
        masters = ranks[0].ask("masters")
        pids = master_pids(masters)
        os.kill(pids[place], signal.SIGKILL)
        assert together(ranks, "update") == [2, 2]
        assert together(ranks, "sums", 1) == [2, 2]
        os.kill(pids[1 - place], signal.SIGKILL)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_any_of_three_nodes_may_die(node):
    """Processes stand for nodes: with one go its ranks and its master at once."""
    with job(["0", "0", "1", "1", "2", "2", "3", "3"]) as ranks:
        together(ranks, "connect")
        masters = ranks[0].ask("masters")
        assert len(ports(masters)) == 3
        pids = master_pids(masters)
        dead = ranks[2 * node : 2 * node + 2]
        for pid in [pids[node], *(rank.pid for rank in dead)]:
            os.kill(pid, signal.SIGKILL)
        alive = [rank for rank in ranks if rank not in dead]
        assert together(alive, "sums", 3) == [6] * 6
        assert together(alive, "update") == [6] * 6
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_masters_that_have_ended_too_early_are_started_again(monkeypatch):
    """As where 15 s pass before the rank that has started them comes to connect."""
    start, started = _own_masters.start_master, []

    def start_and_end(address, listed, deadline, **options):
        started.append(address)
        problem = start(address, listed, deadline, **options)
        if len(started) == 2:
            end_masters(listed)
        return problem

    monkeypatch.setattr(_own_masters, "start_master", start_and_end)
    comm, members = _bootstrap.connect(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE))
    assert (members, started[2:]) == ((comm.uuid,), started[:2])
    comm.close()
    end_masters(this_run.masters)


def test_a_master_starts_without_an_interpreter():
    """What its start costs counts on a machine whose processors are all busy."""
    with job(["0"]) as [rank]:
        rank.ask("connect")
        for pid in master_pids(rank.ask("masters")):
            assert os.readlink(f"/proc/{pid}/exe").endswith("/pccl/spawned_master")
            assert os.getsid(pid) == pid
            files = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
            held = {str(Path(keys).parent)} if (keys := rank.ask("keys")) and not os.environ.get("PCCL_KEYS") else set()
            kept = {name for name in files if name.startswith(("/", "pipe")) and not name.endswith(".events")}
            assert kept == {os.devnull, *held}
            os.kill(pid, signal.SIGKILL)


def test_the_log_of_the_masters(monkeypatch, tmp_path):
    monkeypatch.setenv("PCCL_MASTER_LOG", str(tmp_path / "log"))
    comm, _ = _bootstrap.connect(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE))
    comm.close()
    end_masters(this_run.masters)
    assert "master" in (tmp_path / "log").read_text()
    monkeypatch.setenv("PCCL_MASTER_LOG", str(tmp_path / "none" / "log"))
    with pytest.raises(_board.BootstrapError, match=r"could not start the master .* it cannot write its log to .*none/log"):
        _bootstrap.connect(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE))


@pytest.mark.plain("it makes keys of its own")
def test_keys_of_peers_without_a_master_are_told_with_both_ways_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PCCL_KEYS", str(_keys.write_files(tmp_path / "run", _keys.new_keys())[1]))
    with pytest.raises(_board.BootstrapError) as caught:
        _bootstrap.connect(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE))
    assert "run.peer are for peers: a master needs the other file" in caught.value.detail
    assert "If a master runs already, give all ranks PCCL_MASTER=host:port" in caught.value.detail
    assert "cannot listen" not in caught.value.detail


def test_a_master_that_cannot_start_is_told_with_the_reason():
    deadline = Deadline(PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"{address}, is in use" in _own_masters.start_master(address, address, deadline)
    assert "arguments" in _own_masters.start_master("127.0.0.1:9", "127.0.0.1:10", deadline)


def test_a_timeout_of_one_second_holds_on_a_busy_machine():
    running = int(os.getloadavg()[0])  # beside these, of other tests too
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(max(0, 8 - running))]
    try:
        for _ in range(3):
            with job(["0"] * 2) as ranks:
                assert together(ranks, "masters") == ["", ""]  # both processes run
                answers = together(ranks, "connect", 1.0)
                assert len(answers[0]) == len(set(answers[0])) == 2, answers
                end_masters(ranks[0].ask("masters"))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize("own", [0, 1])
def test_ranks_that_have_not_called_are_named_while_it_waits(own, monkeypatch, caplog):
    monkeypatch.setattr(_board, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(pccl._host.waits, "FIRST_SECONDS", 0.05)
    with pytest.raises(_board.BootstrapError, match=f"rank {1 - own} of 2 has not called"):
        _bootstrap.connect(dist.HashStore(), own, 2, timedelta(seconds=1))
    assert f"rank {1 - own} of 2 has not called init_process_group" in caplog.text


def test_what_ranks_disagree_about_is_logged_while_they_wait(monkeypatch):
    """Rank 0 gives the others time to write their places anew. All say meanwhile why nothing happens."""
    monkeypatch.setattr(_board, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(pccl._host.waits, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(pccl._host.waits, "AGAIN_SECONDS", 0.05)
    words = 'rank 0 has the membership "elastic" and rank 1 "fixed"; give all ranks the same'
    store, waits = dist.HashStore(), [Waits(), Waits()]

    def meet(rank: int, membership: str) -> str:
        board = _board.Board(store, rank, 2, Deadline(PATIENCE), timedelta(seconds=10))
        board.log = waits[rank]
        with pytest.raises(_board.BootstrapError) as raised:
            board.meet(_board.own_place(store, 2, membership))
        return str(raised.value)

    with ThreadPoolExecutor() as threads:
        errors = list(threads.map(meet, (0, 1), ("elastic", "fixed")))
    assert all(words in error for error in errors), errors
    assert all(words in " ".join(wait.told) for wait in waits), [wait.told for wait in waits]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_two_processes_have_is_named(rank, monkeypatch):
    monkeypatch.setattr(pccl._host.waits, "FIRST_SECONDS", 0.05)
    store = dist.HashStore()
    boards = [_board.Board(store, rank, 2, Deadline(3), timedelta(seconds=3)) for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        met = [threads.submit(board.meet, _board.own_place(store, 2)) for board in boards]
        texts = [str(each.exception()) for each in met]
    assert any(f"rank {rank} of 2 is there twice" in text and "its own RANK" in text for text in texts), texts
    assert any(f"rank {1 - rank} of 2 has not called" in text for text in texts), texts


class Waits(_waits.WaitLog):
    """Keeps what is told, too."""

    def __init__(self) -> None:
        super().__init__("meet")
        self.told: list[str] = []

    def tell(self, text: str) -> None:
        self.told.append(text)


@pytest.mark.parametrize(("own", "text"), [(0, "rank 1 of 2 has not joined the run at"), (1, "rank 1 waits for rank 0")])
def test_ranks_that_hang_are_named_while_it_waits(own, text, monkeypatch, caplog):
    """The other rank has met this one, and does no more."""
    monkeypatch.setattr(_board, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(pccl._host.waits, "FIRST_SECONDS", 0.2)
    store, deadline = dist.HashStore(), Deadline(PATIENCE)
    other = _board.Board(store, 1 - own, 2, deadline, timedelta(seconds=PATIENCE))
    thread = threading.Thread(target=other.meet, args=(_board.own_place(store, 2),))
    thread.start()
    with pytest.raises(_board.BootstrapError):
        _bootstrap.connect(store, own, 2, timedelta(seconds=3))
    thread.join()
    assert text in caplog.text


def test_a_master_of_the_environment_is_used():
    with pccl.MasterNode("127.0.0.1:0") as master, job(["0", "1"], PCCL_MASTER=f"127.0.0.1:{master.port}") as ranks:
        together(ranks, "connect")
        assert together(ranks, "masters") == [f"127.0.0.1:{master.port}"] * 2
        assert together(ranks, "sums", 1) == [2, 2]


# ---- keys ----

encrypts = pytest.mark.skipif(why_plain() != "", reason="this build has no encryption")
own = pytest.mark.plain("the job makes its own keys")


class Recorded:
    """A store that keeps all that is written to it."""

    def __init__(self) -> None:
        self.store = dist.HashStore()
        self.written: list[str] = []

    def set(self, key: str, value: str) -> None:
        self.written += [key, value]
        self.store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@encrypts
@own
def test_a_job_on_one_host_makes_keys(tmp_path):
    with job(["0", "0", "1"], TMPDIR=str(tmp_path)) as ranks:
        together(ranks, "connect")
        assert together(ranks, "sums", 1) == [3] * 3
        [keys] = set(together(ranks, "keys"))
        masters = ranks[0].ask("masters")
        folder = Path(keys).parent
        assert folder.parent == tmp_path
        modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
        assert modes == {folder.name: 0o700, "run.master": 0o600, "run.peer": 0o600}
        hidden = secrets_of(folder / "run.master")
        pids = master_pids(masters)
        for pid in (*pids, *(rank.pid for rank in ranks)):
            shown = "".join(Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ"))
            assert not any(secret in shown for secret in hidden)
        stranger = _keys.write_files(tmp_path / "stranger", _keys.new_keys())[1]
        for refused in (None, stranger):
            with pccl.Communicator(masters, keys=refused) as comm, pytest.raises(pccl.PCCLError):
                comm.connect(1, timeout=PATIENCE)
        together(ranks, "leave")
        for pid, there in zip(pids, (True, False), strict=True):
            os.kill(pid, signal.SIGTERM)
            while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
                time.sleep(0.01)
            assert folder.exists() == there  # the last master removes it


@encrypts
@own
def test_the_store_has_the_path_of_the_keys_alone(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store: Any = Recorded()
    comm, _ = _bootstrap.connect(store, 0, 1, timedelta(seconds=PATIENCE))
    written = "".join(store.written)
    assert str(Path(this_run.keys).parent) in written
    assert not any(secret in written for secret in secrets_of(Path(this_run.keys).with_name("run.master")))
    comm.close()
    end_masters(this_run.masters)


@encrypts
@own
def test_a_job_that_begins_again_has_other_keys(tmp_path):
    """Its first masters are still there."""
    with job(["0"] * 2, TMPDIR=str(tmp_path)) as ranks:
        seen = []
        for _ in range(2):
            together(ranks, "connect")
            assert together(ranks, "sums", 1) == [2] * 2
            seen.append((ranks[0].ask("keys"), ranks[0].ask("masters")))
            together(ranks, "leave")
        assert len({keys for keys, _ in seen}) == 2
        assert all(Path(keys).exists() for keys, _ in seen)
        for _, masters in seen:
            end_masters(masters)


@encrypts
def test_keys_that_are_given_are_used(tmp_path):
    (tmp_path / "empty").mkdir()
    master, _ = _keys.write_files(tmp_path / "run", _keys.new_keys())
    with job(["0"] * 2, TMPDIR=str(tmp_path / "empty"), PCCL_KEYS=str(master)) as ranks:
        together(ranks, "connect")
        assert together(ranks, "sums", 1) == [2] * 2
        assert together(ranks, "keys") == [str(master)] * 2
        assert not list((tmp_path / "empty").iterdir())
        end_masters(ranks[0].ask("masters"))


@own
def test_a_job_that_does_without_keys(tmp_path):
    with job(["0"] * 2, TMPDIR=str(tmp_path), PCCL_INSECURE="1") as ranks:
        together(ranks, "connect")
        assert together(ranks, "keys") == [""] * 2
        assert not list(tmp_path.iterdir())
        end_masters(ranks[0].ask("masters"))


@encrypts
@own
@pytest.mark.parametrize(
    ("place", "told", "words"),
    [
        ({}, ["", "PCCL_INSECURE=1"], "rank 1 has no keys that rank 0 made for this job: PCCL_INSECURE=1"),
        ({}, ["/tmp", ""], "rank 1 has no keys that rank 0 made for this job: /tmp was not made for a job"),
        ({}, ["/pccl-keys-", ""], "rank 1 has no keys that rank 0 made for this job: .*No such file or directory: '/pccl-keys-'"),
        ({"network": "another", "address": "127.0.0.1"}, None, "on several hosts, and the job has no keys: run `pccl keys run`"),
        ({"masters": "127.0.0.1:9"}, None, "rank 1 has no PCCL_MASTER, and another rank names 127.0.0.1:9"),
    ],
)
def test_ranks_are_not_talked_out_of_keys(place, told, words):
    """Whoever writes to the store cannot make a rank do without, or use a folder that is not this user's alone."""
    store = dist.HashStore()
    board = _board.Board(store, 0, 2, Deadline(PATIENCE), timedelta(seconds=PATIENCE))

    def lead():
        board.meet(dataclasses.replace(_board.own_place(store, 2), **place))
        if told is not None:
            board.tell("keys", 0, json.dumps(told))

    thread = threading.Thread(target=lead)
    thread.start()
    with pytest.raises(_board.BootstrapError, match=words):
        _bootstrap.connect(store, 1, 2, timedelta(seconds=PATIENCE))
    thread.join()


@encrypts
@own
def test_keys_that_one_rank_alone_has_are_told(monkeypatch, tmp_path):
    store, deadline = dist.HashStore(), Deadline(PATIENCE)
    other = _board.Board(store, 1, 2, deadline, timedelta(seconds=PATIENCE))
    place = _board.own_place(store, 2)
    monkeypatch.setenv("PCCL_KEYS", str(tmp_path / "run.master"))
    problems = []

    def follow():
        try:
            other.meet(place)
        except _board.BootstrapError as error:
            problems.append(str(error))

    thread = threading.Thread(target=follow)
    thread.start()
    with pytest.raises(_board.BootstrapError, match="rank 0 has PCCL_KEYS, and rank 1 has not"):
        _bootstrap.connect(store, 0, 2, timedelta(seconds=3))
    thread.join()
    assert "give all ranks the keys of the run, or none" in problems[0]


@encrypts
def test_keys_of_two_runs_are_told(monkeypatch, tmp_path):
    places, marks = [], []
    for name in ("one", "two"):
        keys = _keys.new_keys()
        master, peer = _keys.write_files(tmp_path / name, keys)
        marks.append(_keys.fingerprint(keys.master_public))
        for path in (master, peer):
            monkeypatch.setenv("PCCL_KEYS", str(path))
            places.append(_board.own_place(dist.HashStore(), 2))
    texts = [json.dumps(dataclasses.asdict(place)) for place in places]
    assert _board._problem(texts[:2], places[0]) == ""  # the files of one run
    told = _board._problem([texts[0], texts[3]], places[0])
    assert all(mark in told for mark in marks)
    assert "copy one file to all hosts" in told
    monkeypatch.setenv("PCCL_KEYS", str(tmp_path / "none"))
    unread = _board.own_place(dist.HashStore(), 2)  # its own error says why
    assert _board._problem([texts[0], json.dumps(dataclasses.asdict(unread))], places[0]) == ""


# ---- what goes wrong ----


@pytest.mark.parametrize(
    "text", ["[]", b"\xff", '{"name": "", "places": [1], "problem": ""}', '{"name": "", "places": 1, "problem": ""}']
)
def test_what_a_stranger_writes_to_the_store_is_refused(text):
    """init_process_group raises BootstrapError for any content."""
    store = dist.HashStore()
    store.set("pccl/attempt", text)
    with pytest.raises(_board.BootstrapError, match="something else than what a rank writes"):
        _bootstrap.connect(store, 1, 2, timedelta(seconds=PATIENCE))


def test_ranks_that_do_not_come_are_named():
    with job(["0"] * 2, [4, 4]) as ranks:
        for rank in ranks:
            rank.tell("connect", 2.0)
        for rank in ranks:
            assert "ranks 2, 3 of 4 have not called init_process_group" in rank.answer()


def test_world_sizes_that_disagree_are_told_to_all():
    with job(["0"] * 3, [3, 3, 4]) as ranks:
        answers = [rank.tell("connect", 3.0) for rank in ranks]
        assert all("give all ranks the same WORLD_SIZE" in rank.answer() for rank in answers)


def test_a_rank_0_with_another_world_size_is_noticed():
    with job(["0"] * 3, [4, 3, 3]) as ranks:
        answers = [rank.tell("connect", 3.0) for rank in ranks]
        assert all("give all ranks the same WORLD_SIZE" in rank.answer() for rank in answers)


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("PCCL_MAX_MEMBERS", "1", "PCCL_MAX_MEMBERS=1 is less than the world size 2"),
        ("PCCL_MIN_MEMBERS", "3", "PCCL_MIN_MEMBERS=3 is more than the world size 2"),
    ],
)
def test_limits_that_no_group_of_the_job_can_have_are_told_at_once(name, number, words):
    with job(["0"] * 2, **{name: number}) as ranks:
        assert all(words in answer for answer in together(ranks, "connect", 600.0))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("PCCL_MASTER", "127.0.0.1", "PCCL_MASTER: address '127.0.0.1' has no port"),
        ("PCCL_INTERFACE", "none", "cannot make a communicator: interface none does not exist"),
    ],
)
def test_wrong_values_of_the_environment_are_told_by_every_rank(name, text, words):
    with job(["0"] * 2, **{name: text}) as ranks:
        assert all(words in answer for answer in together(ranks, "connect"))


def test_no_rank_waits_inside_the_store():
    """The `wait` of a store hears no signal, so Ctrl-C would be heard after seconds."""
    known = dist.HashStore()
    store: Any = SimpleNamespace(set=known.set, get=known.get, check=known.check)
    place = _board.own_place(known, 2)
    for rank, missing in ((0, 1), (1, 0)):
        board = _board.Board(store, rank, 2, Deadline(0.1), timedelta(seconds=0.1))
        with pytest.raises(_board.BootstrapError, match=f"rank {missing} of 2 has not called"):
            board.meet(place)
        known.delete_key(f"pccl/place/{rank}")


def test_a_master_that_is_not_there_is_named():
    with job(["0"] * 2, PCCL_MASTER="127.0.0.1:9") as ranks:
        for rank in ranks:
            rank.tell("connect", 2.0)
        for rank in ranks:
            assert "127.0.0.1:9" in rank.answer()


def test_masters_that_differ_are_told():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [Performer(Rank, at, (store.port, at, 2), {"PCCL_MASTER": f"127.0.0.1:{9 + at}"}) for at in range(2)]
    for rank in ranks:
        rank.tell("connect", 5.0)
    for rank in ranks:
        assert "give all of them the same" in rank.answer()
        rank.kill()


def test_another_job_at_the_same_master_is_told():
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}") as other:
        other.connect()
        with job(["0"] * 2, PCCL_MASTER=f"127.0.0.1:{master.port}") as ranks:
            for rank in ranks:
                rank.tell("connect", PATIENCE)
            while not other.are_peers_pending(timeout=PATIENCE):
                pass
            other.update_topology(timeout=PATIENCE)
            for rank in ranks:
                assert "serves another job (members: 1)" in rank.answer()


def test_jobs_share_a_master_by_names():
    with pccl.MasterNode("127.0.0.1:0") as master:
        first = job(["0"] * 2, PCCL_MASTER=f"127.0.0.1:{master.port}/first")
        second = job(["0"] * 2, PCCL_MASTER=f"127.0.0.1:{master.port}/second")
        with first as one, second as other:
            for rank in (*one, *other):
                rank.tell("connect", PATIENCE)
            found = [rank.answer() for rank in (*one, *other)]
            assert [len(members) for members in found] == [2] * 4
            assert found[0] == found[1] != found[2] == found[3]
            assert one[1].ask("masters") == f"127.0.0.1:{master.port}/first"


def test_a_store_that_dies_is_told():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rank = Performer(Rank, 0, (store.port, 0, 2))
    rank.tell("connect", PATIENCE)
    store.wait(["pccl/place/0"], timedelta(seconds=PATIENCE))
    assert json.loads(store.get("pccl/place/0"))["world_size"] == 2
    del store
    assert "has lost the store" in rank.answer()
    rank.kill()


def test_who_starts_a_master():
    assert _own_masters._starters(["a"] * 4) == [0, 0]
    assert _own_masters._starters(["a", "a", "b"]) == [0, 2]
    assert _own_masters._starters(["a", "b", "a", "c", "d"]) == [0, 1, 3]


@pytest.mark.parametrize(("addresses", "words"), [("", "PCCL_MASTER"), ("somewhere", "no port")])
def test_a_newcomer_needs_an_address(addresses, words):
    with this_run.meant_to_join(addresses), pytest.raises(_board.BootstrapError, match=words):
        _bootstrap.connect(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE))


def test_a_newcomer_is_alone_and_knows_where_to_go(monkeypatch):
    monkeypatch.setenv("PCCL_MASTER", "127.0.0.1:9")
    monkeypatch.setattr(this_run, "to_join", "")
    with this_run.meant_to_join(None):
        comm, members = _bootstrap.connect(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE))
    assert (comm.alive, len(members), this_run.to_join) == (False, 1, "127.0.0.1:9")
    this_run.joined()
    assert this_run.to_join == ""


def test_the_supervisor_is_told_the_masters_and_when_a_newcomer_has_joined(monkeypatch):
    told, tells = os.pipe()
    monkeypatch.setenv("PCCL_SUPERVISOR_PIPE", str(tells))
    monkeypatch.setattr(_waits, "_pipe", "")
    monkeypatch.setattr(this_run, "to_join", "")
    with this_run.meant_to_join("127.0.0.1:9"):
        _bootstrap.connect(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE))
    assert "PCCL_SUPERVISOR_PIPE" not in os.environ
    assert os.read(told, 100) == b"masters 127.0.0.1:9\n"
    this_run.joined()
    os.close(tells)
    assert os.read(told, 100) == b"joined\n"
    os.close(told)


def test_a_job_that_torchrun_has_started_anew_joins_the_run_that_goes_on():
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}") as survivor:
        survivor.connect()
        environment = {"PCCL_MASTER": f"127.0.0.1:{master.port}", "TORCHELASTIC_RESTART_COUNT": "1"}
        with job(["0"] * 2, **environment) as ranks:
            assert together(ranks, "to_join") == [environment["PCCL_MASTER"]] * 2


def test_a_job_that_torchrun_has_started_anew_begins_anew_where_no_run_goes_on():
    with pccl.MasterNode("127.0.0.1:0") as master:
        environment = {"PCCL_MASTER": f"127.0.0.1:{master.port}", "TORCHELASTIC_RESTART_COUNT": "1"}
        with job(["0"] * 2, **environment) as ranks:
            assert len(set(together(ranks, "connect"))) == 1
            assert together(ranks, "sums", 1) == [2, 2]
