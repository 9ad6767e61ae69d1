"""Programs that have peers or a master and fork. `python forking.py NAME ARGUMENTS...` runs one; test_fork.py starts them.

A program says in lines on stdout how far it is; lines that begin with "pid" name children that live on, for the test to end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch.utils.data
from peers import PATIENCE, Background, address_of, form, on_all, team

import pccl
from pccl import Communicator, MasterNode, ReduceOp

BLOCKED_SECONDS = 600
"""How long children do nothing: longer than any test lasts."""


def say(*words: object) -> None:
    print(*words, flush=True)


def say_pid(pid: int | None) -> None:
    assert pid is not None
    say("pid", pid)


def sleep_on() -> None:
    time.sleep(BLOCKED_SECONDS)


def fork(child: Callable[[], int]) -> int:
    """Forks; the child ends with what `child` returns, and nothing else of this program runs in it."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = child()
        finally:
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- a peer with children, to be killed ----


class Slow(torch.utils.data.Dataset):
    """Items of which the first few come at once. The workers are inside the next ones then, as in a slow read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 4:
            sleep_on()
        return torch.full((4,), float(index))

    def __len__(self) -> int:
        return 1000


def with_loader(method: str) -> object:
    loader = torch.utils.data.DataLoader(Slow(), batch_size=1, num_workers=2, multiprocessing_context=method)
    batches = iter(loader)
    assert [int(next(batches)[0, 0]) for _ in range(4)] == [0, 1, 2, 3]
    for worker in batches._workers:  # type: ignore[attr-defined]
        say_pid(worker.pid)
    return batches


def with_process(method: str) -> object:
    process = multiprocessing.get_context(method).Process(target=sleep_on)  # type: ignore[attr-defined]
    process.start()
    say_pid(process.pid)
    return process


def with_subprocess(inherits: str) -> object:
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({BLOCKED_SECONDS})"], close_fds=not inherits)
    say_pid(process.pid)
    return process


def with_fork(times: str) -> object:
    """A child, or the child of a child, whose parent goes on as well."""

    def child() -> int:
        if times == "2":
            say_pid(fork(lambda: sleep_on() or 0))
        sleep_on()
        return 0

    say_pid(fork(child))
    return None


CHILDREN: dict[str, Callable[[str], object]] = {
    "none": lambda _: None,
    "loader": with_loader,
    "process": with_process,
    "subprocess": with_subprocess,
    "fork": with_fork,
}


def train(address: str, kind: str, how: str = "") -> None:
    """A peer that starts children, says so, and reduces until it is killed."""
    with Communicator(address) as comm:
        comm.connect()
        form(comm, 2)
        values = np.ones(1024, np.float32)
        comm.all_reduce(values, values, op=ReduceOp.MAX)
        children = CHILDREN[kind](how)
        say("ready")
        while True:
            comm.all_reduce(values, values, op=ReduceOp.MAX)
        del children


# ---- forks in the middle of ops ----


def use_inherited(comms: list[Communicator], handle: pccl.AsyncReduceHandle) -> int:
    """Every call of a child with what it has inherited fails at once, and says why."""
    array = np.ones(4, np.float32)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")])
    comm = comms[0]
    calls: list[Callable[[], object]] = [
        comm.connect,
        comm.reconnect,
        comm.update_topology,
        comm.are_peers_pending,
        comm.optimize_topology,
        lambda: comm.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE),
        lambda: comm.uuid,
        lambda: comm.all_reduce(array, array, op=ReduceOp.SUM),
        lambda: comm.all_reduce_async(array, array, op=ReduceOp.SUM),
        lambda: comm.sync_shared_state(state),
        handle.wait,
    ]
    return refused(comm, calls)


def refused(inherited: object, calls: Sequence[Callable[[], object]]) -> int:
    """0: each call says that the object is of the parent process, and its repr does, too; else which of them does not."""
    for number, call in enumerate(calls):
        try:
            call()
        except pccl.UsageError as error:
            if "after the fork" not in error.detail:
                return 10 + number
        else:
            return 40 + number
    return 0 if "of the parent process" in repr(inherited) else 9


def make_own() -> int:
    """A child has a run of its own, with a sum and a sync in it."""
    with team([0, 0]) as comms:
        arrays = [np.full(100_000, 1 << rank, np.int64) for rank in range(2)]
        on_all(comms, lambda comm, rank: comm.all_reduce(arrays[rank], arrays[rank], op=ReduceOp.SUM, timeout=PATIENCE))
        if not all((array == 3).all() for array in arrays):
            return 1
        states = [pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")]) for array in arrays]
        on_all(comms, lambda comm, rank: comm.sync_shared_state(states[rank], timeout=PATIENCE))
    return 0


COUNTS = {"small": 1000, "large": 1_000_000, "retry": 1_000_000}


def launch(comm: Communicator, array: np.ndarray, kind: str) -> pccl.AsyncReduceHandle:
    return comm.all_reduce_async(array, array, op=ReduceOp.SUM, retry=kind == "retry")


def ops(kind: str) -> None:
    """Three peers reduce, while children of all sorts come and go. Those that leave run all `with` blocks and destructors."""
    children: list[tuple[int, int]] = []
    with team([0, 0, 0]) as comms:
        for number in range(12):
            arrays = [np.arange(COUNTS[kind], dtype=np.int64) % 1000 + (1 << 10 * rank + 10) for rank in range(3)]
            expected = arrays[0] + arrays[1] + arrays[2]
            handles = [launch(comms[0], arrays[0], kind)]
            launching = Background(lambda a=arrays: [launch(comms[rank], a[rank], kind) for rank in (1, 2)])
            end = number % 6
            if end == 0:
                children.append((fork(lambda h=handles[0]: use_inherited(comms, h)), 0))
            elif end == 1:
                children.append((fork(make_own), 0))
            elif end == 2:
                children.append((fork(lambda: 8), 8))
            elif end == 3:
                children.append((fork(lambda: os.kill(os.getpid(), signal.SIGSEGV) or 0), -signal.SIGSEGV))
            else:
                pid = os.fork()
                if pid == 0 and end == 4:
                    sys.exit(7)
                if pid == 0:
                    raise RuntimeError("a child ends by an exception")
                children.append((pid, 7 if end == 4 else 1))
            handles += launching.result()
            for array, handle in zip(arrays, handles, strict=True):
                success, status, _ = handle.wait(timeout=PATIENCE)
                assert success, (number, status)
                assert np.array_equal(array, expected), number
        for pid, status in children:
            got = status_of(pid)
            assert got == status, (got, status)
        on_all(comms, lambda comm, rank: comm.update_topology(timeout=PATIENCE))
        assert comms[0].get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) == 3
    say("fine")


# ---- a master in a process that forks ----


def master() -> None:
    """What it closes is closed, though children live that were forked while it was open; and it has nothing to do then."""
    node = MasterNode("127.0.0.1:0", heartbeat_limit=60)
    node.run()
    clients = [socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE) for _ in range(4)]
    with Communicator(address_of(node)) as comm:  # it has accepted all that came before
        comm.connect()
        say_pid(fork(lambda: sleep_on() or 0))
        for client in clients:
            client.sendall(b"x" * 40)
            while client.recv(64):  # with keys, an alert of TLS
                continue
            with contextlib.suppress(OSError):
                client.sendall(b"more")
        spent = time.process_time()
        time.sleep(1)
        spent = time.process_time() - spent
        assert spent < 0.4, f"{spent} s of processor time within a second in which nothing happened"
    port = node.port
    node.close()
    with MasterNode(f"127.0.0.1:{port}") as again:
        assert again.port == port
        inherited = fork(lambda: refuses(again))
        assert status_of(inherited) == 0
        with Communicator(address_of(again)) as comm:
            comm.connect()
    say("fine")


def refuses(node: MasterNode) -> int:
    status = refused(node, (node.run, node.wait, node.interrupt))
    node.close()
    return status


# ---- a storm of forks ----


def sockets_left() -> int:
    """How many descriptors of a kind that only pccl has here are open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "anon_inode:[event"))
    return found


def storm() -> None:
    """Communicators and masters are made and closed in threads, while the process forks: no child has a descriptor of them."""
    assert sockets_left() == 0
    over = threading.Event()

    def come_and_go() -> int:
        rounds = 0
        while not over.is_set() or rounds == 0:
            with MasterNode("127.0.0.1:0") as node, Communicator(address_of(node)) as comm:
                comm.connect()
            rounds += 1
        return rounds

    threads = [Background(come_and_go) for _ in range(3)]
    for number in range(100):
        left = status_of(fork(sockets_left))
        assert left == 0, (number, left)
    assert status_of(fork(make_own)) == 0
    over.set()
    for thread in threads:
        assert thread.result() > 0
    say("fine")


if __name__ == "__main__":
    {"train": train, "ops": ops, "master": master, "storm": storm}[sys.argv[1]](*sys.argv[2:])
