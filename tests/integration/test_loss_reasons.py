"""Members tell why another one is gone: each way to go, by a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from peers import ENVIRONMENT, PATIENCE, MasterProcess, address_of, form, until

from pccl import Communicator, Group, LossReason, MasterNode, PeerLostError, SharedState, TensorInfo
from pccl.monitor.history import Event, read_file

_VICTIM = """
import os, signal, socket, sys, time
import numpy as np
from pccl import Communicator, Left, PCCLError, SharedState, TensorInfo
address, count, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
comm = Communicator(address, name=way)
comm.connect(timeout=60)
while comm.world_size < count:
    comm.update_topology(timeout=60)
comm.all_reduce(np.ones(4, np.float32))
while (line := sys.stdin.readline().strip()):
    try:
        if line == "update":
            comm.update_topology(timeout=60)
        elif line == "leave":
            comm.leave()
        elif line == "sync":
            array = np.zeros(2 if way == "other state" else 4, np.float32)
            comm.sync_shared_state(SharedState([TensorInfo.from_numpy(array, "x")]), timeout=60)
    except Left:
        sys.exit(0)
    except PCCLError as error:
        assert way == "other state", error
if way == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif way == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
elif way == "close":
    comm.close()
elif way == "malformed":
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(fd)) as one:
                if one.getpeername()[:2] == (address.split(":")[0], int(address.split(":")[1])):
                    one.sendall(b"\\xff" * 256)
        except (OSError, ValueError):
            pass
    sys.stdin.readline()
elif way == "exit":
    os._exit(1)
elif way == "failing status":
    sys.exit(1)
elif way == "failing status of a function":
    def fail(ours):
        globals().pop("comm")
        raise SystemExit("no")
    fail(comm)
elif way == "exception":
    raise RuntimeError
elif way == "exception in a block":
    with comm:
        raise RuntimeError
elif way == "caught":
    try:
        with comm:
            raise RuntimeError
    except RuntimeError:
        sys.stdin.readline()
elif way == "status 0 in a block":
    with comm:
        sys.exit(0)
elif way == "block":
    with comm:
        pass
    sys.exit(1)
elif way == "terminate":
    os.kill(os.getpid(), signal.SIGTERM)
elif way == "held":
    import gc
    gc.freeze()
    kept = [comm]
    kept.append(kept)
elif way == "status 0":
    sys.exit(0)
"""

WAYS = {
    "kill": LossReason.DIED,
    "stop": LossReason.SILENT,
    "close": LossReason.ENDED,
    "exit": LossReason.DIED,
    "failing status": LossReason.DIED,
    "failing status of a function": LossReason.DIED,
    "exception": LossReason.DIED,
    "exception in a block": LossReason.DIED,
    "caught": LossReason.DIED,
    "terminate": LossReason.DIED,
    "status 0 in a block": LossReason.ENDED,
    "block": LossReason.ENDED,
    "held": LossReason.ENDED,
    "status 0": LossReason.ENDED,
    "last line": LossReason.ENDED,
    "malformed": LossReason.EXPELLED,
}


@contextlib.contextmanager
def run_with(
    *ways: str, serving: MasterProcess | None = None, logs: Path | None = None
) -> Iterator[tuple[Communicator, Group, dict[str, subprocess.Popen[str]], str]]:
    """A member in this process, and one in a process of its own for each of `ways`, which goes after a line on its input.

    The group has them all. `logs`: a folder for what each process logs.
    """
    with contextlib.ExitStack() as stack:
        address = serving.address if serving else address_of(stack.enter_context(MasterNode("127.0.0.1:0", heartbeat_limit=2)))
        count = 1 + len(ways)
        processes = {}
        for way in ways:
            command = [sys.executable, "-c", _VICTIM, address, str(count), way]
            log = None if logs is None else stack.enter_context((logs / way).open("w"))
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=ENVIRONMENT, stderr=log)
            processes[way] = process
            stack.callback(process.wait)
            stack.callback(process.kill)
        comm = stack.enter_context(Communicator(address))
        comm.connect(timeout=PATIENCE)
        form(comm, count)
        comm.all_reduce(np.ones(4, np.float32))
        yield comm, comm.group(comm.members), processes, address


def go(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def reasons_seen(comm: Communicator, everybody: Group, count: int) -> dict[str, LossReason]:
    """Of `count` lost members, by name."""
    seen: dict[str, LossReason] = {}
    while len(seen) < count:
        with pytest.raises(PeerLostError) as caught:
            comm.barrier(group=everybody, survivors=False, timeout=PATIENCE)
        assert caught.value.reason is caught.value.reasons[0]
        seen = dict(zip(caught.value.names, caught.value.reasons, strict=True))
    return seen


def ways() -> list[object]:
    plain = pytest.mark.plain("the end of an encrypted connection says nothing")
    return [pytest.param(way, marks=plain) if way == "malformed" else way for way in WAYS]


@pytest.mark.parametrize("way", ways())
def test_each_way_to_go(way):
    with run_with(way, "stays") as (comm, everybody, processes, _):
        go(processes[way])
        assert reasons_seen(comm, everybody, 1) == {way: WAYS[way]}


def test_a_receive_names_the_sender_by_its_rank():
    with run_with("stays", "kill") as (comm, everybody, processes, _):
        rank = next(rank for rank, member in enumerate(comm.members) if comm.peer_names[member] == "kill")
        go(processes["kill"])
        with pytest.raises(PeerLostError, match=rf"^recv: .*\(rank {rank} \(kill, \w+\), died") as caught:
            comm.recv(np.ones(4, np.float32), rank, group=everybody)
        assert caught.value.ranks == (rank,)


@pytest.mark.parametrize("call", ["plain", "handle"])
def test_an_op_of_all_members_tells_the_reason(call):
    with run_with("kill", "stays") as (comm, _, processes, _):
        go(processes["kill"])
        ones = np.ones(4, np.float32)
        with pytest.raises(PeerLostError) as caught:
            comm.all_reduce(ones) if call == "plain" else comm.all_reduce_async(ones).result()
        assert (caught.value.reason, caught.value.names, caught.value.ranks) == (LossReason.DIED, ("kill",), ())


def test_several_at_once_keep_their_reasons():
    with run_with("kill", "close", "exit", "stays") as (comm, everybody, processes, _):
        for way in ("kill", "close", "exit"):
            go(processes[way])
        assert reasons_seen(comm, everybody, 3) == {way: WAYS[way] for way in ("kill", "close", "exit")}


def lines_about(log: Path, way: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if f"peer {way} (" in line and (" lost (" in line or " left (" in line)]


@pytest.mark.parametrize("way", ["kill", "exit", "close"])
def test_the_master_has_one_line_for_a_loss(way, tmp_path):
    log = tmp_path / "master"
    with MasterProcess(log=log) as master, run_with(way, "stays", serving=master) as (comm, everybody, processes, _):
        before = len(log.read_text())
        go(processes[way])
        reasons_seen(comm, everybody, 1)
        until(lambda: f"peer {way} (" in log.read_text()[before:])
        assert len([line for line in log.read_text()[before:].splitlines() if f"peer {way} (" in line]) == 1, log.read_text()


def test_decisions_are_told_once_by_each_process(tmp_path):
    with run_with("notice", "other state", "kill", "stays", logs=tmp_path) as (comm, everybody, processes, _):
        go(processes["notice"], "leave")
        for process in processes.values():
            go(process, "update")
        comm.update_topology(timeout=PATIENCE)
        for way in ("other state", "kill", "stays"):
            go(processes[way], "sync")
        comm.sync_shared_state(SharedState([TensorInfo.from_numpy(np.zeros(4, np.float32), "x")]), timeout=PATIENCE)
        go(processes["kill"])
        ways = {"notice": LossReason.LEFT, "other state": LossReason.EXPELLED, "kill": LossReason.DIED}
        assert reasons_seen(comm, everybody, len(ways)) == ways
        told = {one.name: one for one in comm.diagnose().departures}
        assert {name: one.reason for name, one in told.items()} == ways
        assert told["other state"].text.startswith("was expelled: shared state: ")
        assert told["notice"].text == "left: it left, as announced"
        for way, reason in ways.items():
            until(lambda way=way: lines_about(tmp_path / "stays", way), f"a line of {way}")
            (line,) = lines_about(tmp_path / "stays", way)
            assert f"{'lost' if reason.lost else 'left'} ({reason.name.lower()}: " in line


@pytest.mark.parametrize("way", ["kill", "close"])
def test_a_reason_survives_the_master_or_is_unknown(way):
    with MasterProcess(heartbeat_limit=2) as master, run_with(way, "stays", serving=master) as (comm, everybody, processes, _):
        go(processes[way])
        processes[way].wait(PATIENCE)
        master.kill()
        master.start()
        (reason,) = reasons_seen(comm, everybody, 1).values()
        assert reason in (WAYS[way], LossReason.UNKNOWN)


TEXTS = {
    "kill": "was lost (died: ",
    "stop": "was lost (silent: no heartbeat for ",
    "close": "ended: its program closed the communicator",
}


def written(events: Path) -> list[Event]:
    """What is in the file; nothing before its first line is."""
    try:
        return list(read_file(str(events)))
    except (OSError, ValueError):
        return []


@contextlib.contextmanager
def page_of(address: str, events: Path) -> Iterator[None]:
    """`pccl web` of a run, which writes events."""
    command = [sys.executable, "-m", "pccl", "web", "--master", address, "--interval", "0.2"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--events", str(events)], env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as page:
        try:
            until(lambda: any(event["kind"] == "sample" for event in written(events)))
            yield
        finally:
            page.kill()


def left_in(events: Path) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["reason"], one["text"]) for one in read_file(str(events)) if one["kind"] == "left"}


def test_status_top_and_events_tell_the_reasons(tmp_path):
    pytest.importorskip("prometheus_client")
    events = tmp_path / "run.events"
    with run_with(*TEXTS, "stays") as (comm, everybody, processes, address), page_of(address, events):
        for way in TEXTS:
            go(processes[way])
        reasons_seen(comm, everybody, len(TEXTS))
        told = {one.name: (one.reason, one.text) for one in comm.diagnose().departures}
        top = subprocess.check_output(
            [sys.executable, "-m", "pccl", "top", "--once", "--master", address], env=ENVIRONMENT, text=True
        )
        until(lambda: left_in(events).keys() >= set(TEXTS), "events of the members that went")
        for way, text in TEXTS.items():
            assert told[way][0] is WAYS[way]
            assert told[way][1].startswith(text)
            assert left_in(events)[way] == (WAYS[way].name.lower(), told[way][1])
            assert f"{way}, " in top
            assert told[way][1] in top
        name = comm.name
        comm.close()  # nobody loses the last ones, either
        go(processes["stays"])
        until(lambda: "stays" in left_in(events), "an event of the end of the run")
        assert {left_in(events)[one] for one in ("stays", name)} == {("ended", TEXTS["close"])}
