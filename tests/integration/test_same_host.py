"""Peers of one host, which share memory: only with the process at the other end of the link."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import pccl

PATIENCE = 60
NOT_PERMITTED = 77

# Two workers that were forked from one process, which has used the library. Their tensors have the same addresses.
WORKERS = """
import ctypes, os, sys, threading
import numpy as np
from pccl import Communicator, ReduceOp

CLONE_NEWPID = 0x20000000

def join(address):
    comm = Communicator(address)
    comm.connect()
    comm.wait_for_peers(2)
    return comm

def use(address):
    with join(address) as comm:
        ones = np.ones(1 << 20, np.float32)
        comm.all_reduce(ones, ones, op=ReduceOp.SUM)

def work(address, value):
    x[:] = value
    with join(address) as comm:
        for _ in range(5):
            comm.all_reduce(x, y, op=ReduceOp.SUM, timeout=30)
            os.write(1, f"{os.getpid()} {sorted(set(y.tolist()))}\\n".encode())  # one line at once

address, namespaces = sys.argv[1], sys.argv[2] == "namespaces"
threads = [threading.Thread(target=use, args=(address,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
x, y = np.zeros(1 << 20, np.float32), np.zeros(1 << 20, np.float32)
children = []
for value in (1, 1000):
    child = os.fork()
    if child == 0:
        if namespaces:
            if ctypes.CDLL(None).unshare(CLONE_NEWPID) != 0:
                os._exit(77)
            inner = os.fork()  # the first one of its namespace
            if inner:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
        try:
            work(address, value)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.exit(max(codes))
"""


@pytest.mark.parametrize("way", ["plain", "namespaces"])
def test_workers_of_one_process(way: str) -> None:
    """Also with equal process ids, each in a namespace of its own."""
    with pccl.MasterNode("127.0.0.1:0") as master:
        command = [sys.executable, "-c", WORKERS, f"127.0.0.1:{master.port}", way]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    if done.returncode == NOT_PERMITTED:
        pytest.skip("namespaces of process ids need a right that is not here")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    if way == "namespaces":
        assert len({line.split()[0] for line in lines}) == 1, "the process ids differ"
    assert {line.split(maxsplit=1)[1] for line in lines} == {"[1001.0]"}


# A peer whose tensor lies in memory that does not answer, until it is told otherwise.
UNANSWERING = """
import ctypes, errno, fcntl, mmap, os, struct, sys
import numpy as np
from pccl import Communicator, PCCLError, ReduceOp

SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine, 282)
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER = 0xC018AA3F, 0xC020AA00, 0x8010AA01
BYTES, PAGE = 16 << 20, 65536

faults = ctypes.CDLL(None, use_errno=True).syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
if faults < 0:
    sys.exit(77)
memory = mmap.mmap(-1, BYTES)
x = np.frombuffer(memory, np.float32)
x[: PAGE // 4] = x[-PAGE // 4 :] = 1
comm = Communicator(sys.argv[1])
comm.connect()
comm.wait_for_peers(2)
warm = np.ones(1 << 18, np.float32)
for _ in range(5):
    comm.all_reduce(warm, warm, op=ReduceOp.SUM)
fcntl.ioctl(faults, UFFDIO_API, struct.pack("<QQQ", 0xAA, 0, 0))
place = struct.pack("<QQ", x.ctypes.data + PAGE, BYTES - 2 * PAGE)
fcntl.ioctl(faults, UFFDIO_REGISTER, place + struct.pack("<QQ", 1, 0))
handle = comm.all_reduce_async(x, np.empty_like(x), op=ReduceOp.SUM, copy=False)
print("posted", flush=True)
sys.stdin.readline()
fcntl.ioctl(faults, UFFDIO_UNREGISTER, place)  # whoever waits gets pages of zeros
print("answered", flush=True)
sys.stdin.readline()
os._exit(0)
"""

NEIGHBOUR = """
import sys, threading
import numpy as np
from pccl import Communicator, PCCLError, ReduceOp

comm = Communicator(sys.argv[1])
comm.connect()
print("joined", flush=True)
comm.wait_for_peers(2)
warm = np.ones(1 << 18, np.float32)
for _ in range(5):
    comm.all_reduce(warm, warm, op=ReduceOp.SUM)
x, y = np.full(4 << 20, 3, np.float32), np.zeros(4 << 20, np.float32)
print("begins", flush=True)
try:
    comm.all_reduce(x, y, op=ReduceOp.SUM)
    print("sum", flush=True)
except PCCLError as error:
    print(type(error).__name__, flush=True)
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in __import__("os").listdir("/proc/self/task")]
print(names.count("pccl:data"), flush=True)
y[:] = 7
comm.close()
print("closed", flush=True)
sys.stdin.readline()
threads = lambda: [open(f"/proc/self/task/{task}/comm").read().strip() for task in __import__("os").listdir("/proc/self/task")]
while "pccl:data" in threads():
    __import__("time").sleep(0.01)
print("same" if (x == 3).all() and (y == 7).all() else "written", flush=True)
"""


@contextlib.contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.near
@pytest.mark.skipif("PCCL_FAKE_DEVICE" in os.environ, reason="tensors of a device do not pass through shared memory")
def test_memory_that_does_not_answer() -> None:
    """Only its owner waits for it. The other peer's call ends, close() returns, and nothing is written afterwards."""
    with pccl.MasterNode("127.0.0.1:0", heartbeat_limit=2.0) as master:
        address = f"127.0.0.1:{master.port}"
        with python(NEIGHBOUR, address) as neighbour, contextlib.ExitStack() as stack:

            def heard(process: subprocess.Popen[str]) -> str:
                assert process.stdout is not None
                return process.stdout.readline().strip()

            def tell(process: subprocess.Popen[str]) -> None:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()

            assert heard(neighbour) == "joined"
            peer = stack.enter_context(python(UNANSWERING, address))
            if heard(peer) != "posted":
                assert peer.wait(PATIENCE) == NOT_PERMITTED
                pytest.skip("userfaultfd needs a right that is not here")
            assert heard(neighbour) == "begins"
            assert heard(neighbour) == "PeerLostError"
            assert heard(neighbour) == "1", "a thread was left behind in the memory of the other process"
            assert heard(neighbour) == "closed"
            tell(peer)
            assert heard(peer) == "answered"
            tell(neighbour)
            assert heard(neighbour) == "same"
