"""PCCL_CONGESTION_CONTROL: an algorithm that there is not is reported once, and does no harm."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import pccl
with pccl.MasterNode("127.0.0.1:0") as master:
    for _ in range(2):
        with pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
            comm.connect()
            assert comm.links() == ()
"""


@pytest.mark.parametrize(
    ("value", "warnings"), [("no-such-thing", 1), ("system", 0), ("System", 0), ("reno", 0), ("Reno", 0), ("", 0)]
)
def test_a_name_that_is_not_allowed_is_reported_once(value, warnings):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PCCL_CONGESTION_CONTROL": value},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "PCCL_CONGESTION_CONTROL" in line]
    assert len(lines) == warnings
    assert all("no-such-thing is ignored" in line and "reno" in line for line in lines)
