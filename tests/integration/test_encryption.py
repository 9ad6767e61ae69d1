"""Runs with keys: everything works as without them, and strangers get nowhere."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from frame_numbers import HEADER, TYPES, VERSION, hello_body
from peers import ENVIRONMENT, PATIENCE, Background, address_of, admit, form, on_all

from pccl import Communicator, ConnectError, MasterNode, PCCLError, SharedState, TensorInfo
from pccl._core.address import parse_endpoint
from pccl._run import keys as _keys
from pccl._watch.diagnosis import diagnose_run
from pccl.cli import main
from pccl.lab.ports import free_ports

LOCAL = "127.0.0.1:0"
HELLO, RESUME, LINK_HELLO = TYPES["HELLO"], TYPES["RESUME"], TYPES["LINK_HELLO"]
WANTS_KEYS = bytes([0x15, 3, 3, 0, 2, 2, 0x46])


class Files:
    """The files of one run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.master, self.peer = (str(path) for path in _keys.write_files(run, _keys.new_keys()))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.delenv("PCCL_KEYS", raising=False)  # those of `make test-keys`
    return Files(tmp_path / "run")


@contextmanager
def team(files: Files, count: int) -> Iterator[tuple[MasterNode, list[Communicator]]]:
    with MasterNode(LOCAL, keys=files.master) as master, ExitStack() as stack:
        comms: list[Communicator] = []
        for _ in range(count):
            fresh = stack.enter_context(Communicator(address_of(master), keys=files.peer))
            admit(comms, fresh)
            comms.append(fresh)
        yield master, comms


def sums(comms: list[Communicator], size: int, tag: int = 0) -> list[float]:
    def reduce(comm: Communicator, rank: int) -> float:
        value, result = np.full(size, 1 << rank, np.float32), np.zeros(size, np.float32)
        comm.all_reduce(value, result, tag=tag)
        assert np.all(result == result[0])
        return float(result[0])

    return on_all(comms, reduce)


@pytest.mark.parametrize("size", [16, 100_000, 5_000_000])
def test_all_reduce(files, size, monkeypatch):
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", "0")
    with team(files, 3) as (_, comms):
        for tag in range(3):
            assert sums(comms, size, tag) == [7, 7, 7]


def test_shared_state(files, monkeypatch):
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", "0")
    with team(files, 3) as (_, comms):
        tensors = [np.full(1 << 20, min(rank, 1), np.float32) for rank in range(3)]
        states = [SharedState([TensorInfo.from_numpy(tensor, "w")]) for tensor in tensors]
        on_all(comms, lambda comm, rank: comm.sync_shared_state(states[rank]))
        assert [tensor[0] for tensor in tensors] == [1, 1, 1]
        assert all(np.array_equal(tensor, tensors[0]) for tensor in tensors)


MEMBER = """
import sys, numpy as np
from pccl import Communicator
with Communicator(sys.argv[1]) as comm:
    comm.connect(timeout=60)
    print("in", flush=True)
    while True:
        comm.all_reduce(np.ones(1000, np.float32), np.empty(1000, np.float32), tag=1)
"""


def test_a_peer_dies(files):
    """The keys of the dead peer come from the environment."""
    with team(files, 2) as (master, comms):
        environment = {**ENVIRONMENT, "PCCL_KEYS": files.peer}
        command = [sys.executable, "-c", MEMBER, address_of(master)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as member:
            try:
                on_all(comms, lambda comm, rank: form(comm, 3))
                assert member.stdout.readline() == "in\n"

                def until_it_dies(comm: Communicator, rank: int) -> int:
                    rounds = 0
                    while True:
                        try:
                            comm.all_reduce(np.ones(1000, np.float32), np.empty(1000, np.float32), tag=1)
                        except PCCLError:
                            return rounds
                        rounds += 1
                        if rounds == 20 and rank == 0:
                            member.send_signal(signal.SIGKILL)

                assert min(on_all(comms, until_it_dies)) >= 19
            finally:
                member.kill()
        on_all(comms, lambda comm, rank: comm.update_topology())
        assert sums(comms, 1000, tag=2) == [3, 3]


def test_a_standby_takes_the_run_up(files):
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    first, second = addresses.split(",")
    with ExitStack() as stack:
        masters = [stack.enter_context(MasterNode(one, masters=addresses, keys=files.master)) for one in (first, second)]
        comms = [stack.enter_context(Communicator(addresses, keys=files.peer)) for _ in range(3)]
        for number, comm in enumerate(comms):
            admit(comms[:number], comm)
        assert sums(comms, 1000) == [7, 7, 7]
        masters[0].detach()
        masters[0].close()
        on_all(comms, lambda comm, rank: comm.update_topology())
        assert sums(comms, 1000, tag=1) == [7, 7, 7]


def test_status(files, tmp_path):
    with team(files, 2) as (master, comms):
        assert len(comms[0].diagnose().members) == 2
        assert len(diagnose_run(parse_endpoint(address_of(master)), keys=files.peer).members) == 2
        command = [sys.executable, "-m", "pccl", "top", "--master", address_of(master), "--once", "--json"]
        for keys in ([], ["--keys", files.peer]):  # a master knows its own user without keys
            done = subprocess.run(
                [*command, *keys], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=True
            )
            assert len(json.loads(done.stdout)["members"]) == 2


@pytest.mark.parametrize(("command", "named"), [("top", True), ("doctor", True), ("doctor", False)])
def test_keys_of_another_run_on_the_host_of_the_master(files, tmp_path, monkeypatch, command, named):
    """`doctor` also tries those that the environment names, since peers take them."""
    others = Files(tmp_path / "other")
    if not named:
        monkeypatch.setenv("PCCL_KEYS", others.peer)
    with MasterNode(LOCAL, keys=files.master) as master:
        options = ["--keys", others.peer] if named else []
        options += ["--once"] if command == "top" else []
        result = CliRunner().invoke(main, [command, "--master", address_of(master), *options])
    assert result.exit_code == 1
    assert "are not of one run" in " ".join(result.output.split())


def test_command_line_master(files):
    command = [sys.executable, "-m", "pccl", "master", "--listen", LOCAL, "--keys", files.master]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            with Communicator(address, keys=files.peer) as comm:
                comm.connect(timeout=PATIENCE)
            with Communicator(address) as comm, pytest.raises(ConnectError, match="PCCL_KEYS"):
                comm.connect(1)
        finally:
            process.kill()


def test_rotation(files):
    """Processes with the old file, with both secrets, and with the new one alone meet without an interruption."""
    with MasterNode(LOCAL, keys=files.master) as old:
        _keys.add_secret(files.run)
        with Communicator(address_of(old), keys=files.peer) as comm:
            comm.connect(timeout=PATIENCE)
    with MasterNode(LOCAL, keys=files.master) as both:
        _keys.drop_secret(files.run)
        with Communicator(address_of(both), keys=files.peer) as comm:
            comm.connect(timeout=PATIENCE)


def test_the_holder_of_a_dropped_secret(files, tmp_path):
    old = tmp_path / "old.peer"
    shutil.copy(files.peer, old)
    _keys.add_secret(files.run)
    _keys.drop_secret(files.run)
    with team(files, 2) as (master, comms):
        with disturbed(comms), Communicator(address_of(master), keys=old) as comm:
            with pytest.raises(ConnectError, match="not of one run"):
                comm.connect(1)
        assert [comm.world_size for comm in comms] == [2, 2]


STRANGE_STANDBY = """
import sys
from pccl import Communicator, ConnectionFailedError, MasterNode
first, standby, keys, others, peer = sys.argv[1:]
masters = f"{first},{standby}"
with MasterNode(first, masters=masters, keys=keys) as master, MasterNode(standby, masters=masters, keys=others):
    with Communicator(masters, keys=peer, master_recovery_limit=1) as comm:
        comm.connect()
        master.detach()
        master.close()
        try:
            comm.update_topology()
        except ConnectionFailedError as error:
            print(error)
"""


def test_a_standby_with_other_keys_is_named(files, tmp_path):
    """The first master says so when it asks the standby, and a member when it looks for another master."""
    others = Files(tmp_path / "other")
    first, standby = (f"127.0.0.1:{port}" for port in free_ports(2))
    command = [sys.executable, "-c", STRANGE_STANDBY, first, standby, files.master, others.master, files.peer]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert f"within 1000 ms; cannot trust the master at {standby}: its keys" in done.stdout
    assert f"cannot ask the other master of the list at {standby}: its keys" in done.stderr
    assert f"still seeks a master: cannot trust the master at {standby}: its keys" in done.stderr


# ---- what does not fit ----


def test_a_peer_without_keys(files):
    with MasterNode(LOCAL, keys=files.master) as master, Communicator(address_of(master)) as comm:
        with pytest.raises(ConnectError, match="it encrypts, and this process has no keys"):
            comm.connect(1)


def test_a_master_without_keys(files):
    with MasterNode(LOCAL) as master, Communicator(address_of(master), keys=files.peer) as comm:
        with pytest.raises(ConnectError, match="it does not encrypt"):
            comm.connect(1)


def test_keys_of_another_run(files, tmp_path):
    others = Files(tmp_path / "other")
    with MasterNode(LOCAL, keys=files.master) as master, Communicator(address_of(master), keys=others.peer) as comm:
        with pytest.raises(ConnectError, match="not of one run"):
            comm.connect(1)


def test_files_that_do_not_serve(files, tmp_path):
    with pytest.raises(PCCLError, match="are for peers: a master needs"):
        MasterNode(LOCAL, keys=files.peer)
    with pytest.raises(PCCLError, match="No such file"):
        Communicator("127.0.0.1:1", keys=tmp_path / "nowhere")
    os.chmod(files.peer, 0o644)
    with pytest.raises(PCCLError, match=f"chmod 600 {files.peer},"):
        Communicator("127.0.0.1:1", keys=files.peer)


def test_a_bad_file_of_the_environment(files, monkeypatch):
    monkeypatch.setenv("PCCL_KEYS", files.peer + "x")
    with MasterNode(LOCAL, keys=files.master) as master, Communicator(address_of(master), keys=files.peer) as comm:
        comm.connect(timeout=PATIENCE)  # that of the program counts
    with Communicator("127.0.0.1:1") as comm, pytest.raises(PCCLError, match="No such file"):
        comm.connect(1)
    with pytest.raises(PCCLError, match="No such file"):
        MasterNode(LOCAL).run()


# ---- strangers without keys: what once ended a run, or put numbers into its sums ----


def said_to(port: int, kind: int, body: bytes, run: int = 5) -> bytes:
    """What somebody who sends this frame is told before the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as stream:
        heard = b""
        try:
            stream.sendall(HEADER.pack(len(body), b"PC", kind, run, 1, 1) + body)
            while more := stream.recv(4096):
                heard += more
        except ConnectionResetError:
            pass
        return heard


def hello(uuid: bytes) -> bytes:
    return hello_body(uuid, 40000)


@contextmanager
def disturbed(comms: list[Communicator], rounds: int = 30) -> Iterator[list[int]]:
    """The comms reduce, round after round, during the block and for some rounds after it; each sum is checked."""
    over = threading.Event()
    counted = [0] * len(comms)

    def reduce(comm: Communicator, rank: int) -> None:
        last = -1
        for tag in range(1_000_000):
            if over.is_set() and last < 0:
                last = tag
            result = np.zeros(1000, np.float32)
            # The last round is agreed on by a sum.
            comm.all_reduce(
                np.array([2.0**rank] * 999 + [float(last >= 0 and tag >= last + rounds)], np.float32), result, tag=tag
            )
            assert np.all(result[:999] == 2 ** len(comms) - 1)
            counted[rank] += 1
            if result[999] > 0:
                return

    running = [Background(reduce, comm, rank) for rank, comm in enumerate(comms)]
    try:
        yield counted
    finally:
        over.set()
        for one in running:
            one.result()


def test_strangers_at_the_master(files):
    with team(files, 2) as (master, comms):
        with disturbed(comms) as counted:
            for uuid in (comms[0].uuid.bytes, comms[1].uuid.bytes, os.urandom(16)):
                for _ in range(20):
                    assert said_to(master.port, HELLO, hello(uuid)) in (WANTS_KEYS, b"")
                    resume = hello(uuid) + struct.pack("<B", 0) + bytes(400)
                    assert said_to(master.port, RESUME, resume) in (WANTS_KEYS, b"")
        assert min(counted) > 30
        assert [comm.world_size for comm in comms] == [2, 2]


def test_strangers_at_a_member(files, monkeypatch):
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", "0")
    with team(files, 2) as (_, comms):
        ports = [int(member.address.rpartition(":")[2]) for member in comms[0].diagnose().members]
        with disturbed(comms) as counted:
            for port in ports:
                for one, other in ((0, 1), (1, 0)):
                    for _ in range(20):
                        body = struct.pack("<HB", VERSION, 1) + bytes(16) + comms[one].uuid.bytes + comms[other].uuid.bytes
                        assert said_to(port, LINK_HELLO, body + struct.pack("<I", 0)) in (WANTS_KEYS, b"")
        assert min(counted) > 30
    assert len(ports) == 2


def test_many_strangers(files):
    """Connections that say nothing, half of a handshake, or nonsense, while a run is at work."""
    with team(files, 2) as (master, comms):
        with disturbed(comms):
            for turn in range(5):
                with ExitStack() as stack:
                    for number in range(100):
                        stream = stack.enter_context(socket.create_connection(("127.0.0.1", master.port), timeout=PATIENCE))
                        if number % 3 > 0:
                            stream.sendall(b"\x16\x03\x01\x02\x00\x01\x00" if number % 3 == 1 else os.urandom(100 + turn))
        assert [comm.world_size for comm in comms] == [2, 2]


def first_flight(keys: str) -> bytes:
    """What a process with these keys says first, as a reader of the network records it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with Communicator(f"127.0.0.1:{listener.getsockname()[1]}", keys=keys) as comm:
            calling = Background(comm.connect, 1)
            stream, _ = listener.accept()
            with stream:
                flight = stream.recv(1 << 16)
            calling.error()
    return flight


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_newcomer_far_away_during_a_flood(files, many_descriptors):
    """While its handshake is under way, the same host opens more connections than the master keeps of strangers."""
    with MasterNode(LOCAL, keys=files.master) as master, ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        flood = [stack.enter_context(socket.socket()) for _ in range(1100)]  # now, since the handshake may take 5 s
        dropped = select.poll()
        comm = stack.enter_context(Communicator(f"127.0.0.1:{listener.getsockname()[1]}", keys=files.peer))
        joining = Background(comm.connect, 1)
        peer = stack.enter_context(listener.accept()[0])
        up = stack.enter_context(socket.create_connection(("127.0.0.1", master.port), timeout=PATIENCE))
        up.sendall(peer.recv(1 << 16))
        answer = up.recv(1 << 16)
        for stream in flood:
            stream.connect(("127.0.0.1", master.port))
            dropped.register(stream, select.POLLIN)
        assert dropped.poll(1000 * PATIENCE)
        peer.sendall(answer)
        with forwarded(peer, up):
            joining.result()


@contextmanager
def forwarded(one: socket.socket, other: socket.socket) -> Iterator[None]:
    """Carries bytes both ways."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    carriers = [Background(carry, *ends) for ends in ((one, other), (other, one))]
    try:
        yield
    finally:
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for carrier in carriers:
            carrier.result()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def test_half_handshakes(files):
    """Replays of the first message of a member, whose answers nobody proves anything for. Work goes on, and nothing stays."""
    flight = first_flight(files.peer)
    with team(files, 2) as (master, comms):
        sums(comms, 1000, tag=1_000_000)
        opened, memory = descriptors(), resident_mib()
        with disturbed(comms) as counted:
            for _ in range(3):
                with ExitStack() as stack:
                    for number in range(200):
                        stream = stack.enter_context(socket.create_connection(("127.0.0.1", master.port), timeout=PATIENCE))
                        stream.sendall(flight if number % 2 else flight[: 1 + number])
                        if number % 2:
                            assert stream.recv(1) == b"\x16"  # the master's part of the handshake
                    assert resident_mib() - memory < 64
        assert min(counted) > 30
        deadline = time.monotonic() + PATIENCE
        while descriptors() > opened:
            assert time.monotonic() < deadline, "descriptors of strangers stay open"
            time.sleep(0.01)
        assert [comm.world_size for comm in comms] == [2, 2]
