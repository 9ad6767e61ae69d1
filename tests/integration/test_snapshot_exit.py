"""Programs that end while a snapshot is under way, which another member never finishes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from performers import PATIENCE, MasterProcess

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import sys, threading, time
import torch
from pccl import Communicator
from pccl.state import Snapshots
from pccl.state._snapshots.talk import Talk

how, address = sys.argv[1:]
comms = [Communicator(address) for _ in range(2)]
gather, under_way = Talk.gather, threading.Event()

def hangs(talk, numbers):
    if talk._comm is comms[1]:
        under_way.set()
        while not talk._comm._handle.closed:
            time.sleep(0.01)
    return gather(talk, numbers)

Talk.gather = hangs

def member(number):
    comms[number].connect(timeout=30)
    comms[number].wait_for_peers(2, timeout=30)
    comms[number].snapshot({"w": torch.ones(9)}, step=1, part=str(number), snapshots=Snapshots(holder=False))

threads = [threading.Thread(target=member, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
under_way.wait()
try:
    print("under way", flush=True)
    if how == "interrupt":
        comms[0].wait_for_snapshot()
except KeyboardInterrupt:
    print("interrupted", flush=True)
if how == "close":
    comms[0].close()
print("ends", flush=True)
"""


@pytest.fixture
def address() -> Iterator[str]:
    with MasterProcess() as master:
        yield master.address


@pytest.mark.parametrize("how", ["return", "close", "interrupt"])
def test_a_program_ends_quietly_while_a_snapshot_is_under_way(address, how):
    environment = {**os.environ, "PCCL_LOG_LEVEL": "ERR"}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, address],
        env=environment,
        bufsize=0,  # else the first line would take the others along
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"under way\n"
        if how == "interrupt":
            program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert (program.returncode, errors) == (0, b"")
    assert out == (b"interrupted\nends\n" if how == "interrupt" else b"ends\n")
