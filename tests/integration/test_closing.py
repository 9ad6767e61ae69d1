"""A peer that closes its communicator in the middle of an op: nobody takes what its program does with the memory for a sum."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from peers import PATIENCE, team

from pccl import Communicator, PeerLostError, ReduceOp

COUNT = 2_000_000


def reduce_until_done(comm: Communicator, value: int, results: dict[int, np.ndarray]) -> None:
    array = np.full(COUNT, value, np.int64)
    while True:
        try:
            comm.all_reduce(array, array, op=ReduceOp.SUM, timeout=PATIENCE)
        except PeerLostError:
            assert (array == value).all(), "the input has changed"
            continue
        results[value] = array
        return


@pytest.mark.parametrize("seed", range(12))
def test_closing_in_the_middle_of_an_op(seed):
    rng = random.Random(seed)
    with team([0, 0, 0]) as comms:
        leaver = np.full(COUNT, 100, np.int64)
        results: dict[int, np.ndarray] = {}
        workers = [
            threading.Thread(target=reduce_until_done, args=(comm, value, results))
            for comm, value in zip(comms, (1, 10), strict=False)
        ]
        handle = comms[2].all_reduce_async(leaver, leaver, op=ReduceOp.SUM)
        for worker in workers:
            worker.start()
        time.sleep(rng.random() * 0.02)
        comms[2].close()
        leaver[:] = -7
        for worker in workers:
            worker.join()
        assert set(np.unique(results[1])) in ({11}, {111})
        assert np.array_equal(results[1], results[10])
        del handle


LEAVING = """
import threading
import numpy as np
import pccl

with pccl.MasterNode("127.0.0.1:0") as master:
    comms = [pccl.Communicator(f"127.0.0.1:{master.port}") for _ in range(2)]
    comms[0].connect()
    joining = threading.Thread(target=comms[1].connect)
    joining.start()
    while not comms[0].are_peers_pending():
        pass
    comms[0].update_topology()
    joining.join()
    array = np.ones(10)
    handle = comms[0].all_reduce_async(array, array, op=pccl.ReduceOp.SUM)
"""


def test_a_program_ends_that_has_never_awaited_its_op():
    subprocess.run([sys.executable, "-c", LEAVING], timeout=PATIENCE, check=True)
