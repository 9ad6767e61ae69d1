"""Peers of one host, which read each other's memory: only that of the process at the other end of the link."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pccl

PATIENCE = 60
NOT_PERMITTED = 77

# Two workers that were forked from one process, which has used the library. Their tensors have the same addresses.
WORKERS = """
import ctypes, os, sys, threading
import numpy as np
from pccl import Attribute, Communicator, ReduceOp

CLONE_NEWPID = 0x20000000

def join(address):
    comm = Communicator(address)
    comm.connect()
    while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
        comm.update_topology()
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
