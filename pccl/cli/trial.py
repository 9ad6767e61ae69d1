"""The trial of `pccl doctor`: a master and two peers in a process of their own, which all-reduce over loopback.

`run` starts it. Its log and its result tell what this machine and its environment variables do to the library, which a list of
checks could only repeat.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import pccl
from pccl._core.errors import reason_of
from pccl._host.processes import python
from pccl._run.credentials import VARIABLES
from pccl._watch.recording import HEADER_BYTES, RECORD_BYTES

SECONDS = 30.0
"""What a trial may take. A connection that fails is tried for about five seconds."""

COUNT = 1 << 18
"""Elements that are reduced: 1 MiB, so that peers share memory where they can."""

PROGRAM = "from pccl.cli.trial import main; main()"

FILE_RECORDS = 16384
"""As RECORDER_FILE_RECORDS in csrc/base/recorder.h."""

EVENT_FILE_BYTES = HEADER_BYTES + FILE_RECORDS * RECORD_BYTES
"""Size of the event file of a communicator, if PCCL_EVENTS names a place."""

OF_A_RUN = (
    *("PCCL_ADDRESS", "PCCL_INTERFACE", "PCCL_JOIN", "PCCL_MASTERS", "PCCL_MAX_MEMBERS", "PCCL_MIN_MEMBERS"),
    *("PCCL_RELAY", "PCCL_RUN"),
)
"""Variables that the library reads once, and that the run of the trial then goes without."""

LINE = re.compile(r"\S+ \S+ pccl (?:WARN|ERR|FATAL) \[\d+\] (\w+): (.*)")


class Trial(NamedTuple):
    """Result of a trial."""

    settings: tuple[str, ...]  # what the library says of environment variables
    warnings: tuple[str, ...]  # what else it warns of
    failure: str  # "": the peers have reduced
    milliseconds: float
    keeps_events: bool  # a file for the events of a process can be made, or none is wanted


def run() -> Trial:
    """Makes a trial with the environment of this process. No way of failing raises an error."""
    # another check reads the keys: the trial stays on loopback, without them
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    events = environment.pop("PCCL_EVENTS", "")  # the files of the trial would stay there
    unwritable = _why_unwritable(events) if events not in ("", "off") else ""
    if environment.get("PCCL_LOG_LEVEL", "").upper() in ("", "ERR", "FATAL", "NONE"):
        environment["PCCL_LOG_LEVEL"] = "WARN"
    command = python(PROGRAM)
    try:
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as expired:
        warnings = tuple(text for _, text in _warnings(os.fsdecode(expired.stderr or b"")))
        return Trial((), warnings, f"the peers have not reduced within {SECONDS:g} s", 0.0, True)
    except OSError as error:
        return Trial((), (), f"no process can be started: {error.strerror}", 0.0, True)
    lines = _warnings(ended.stderr)
    settings = [text for component, text in lines if component == "config" or text.startswith("PCCL_")]
    others = [text for _, text in lines if text not in settings] + ([unwritable] if unwritable else [])
    try:
        told = json.loads(ended.stdout)
    except ValueError:
        last = ended.stderr.strip().rpartition("\n")[2] or "it says nothing"
        told = {"setting": "", "failure": f"exit status {ended.returncode}: {last}", "milliseconds": 0.0, "event_file": None}
    if told["setting"]:
        settings.append(told["setting"])
    return Trial(tuple(settings), tuple(others), told["failure"], told["milliseconds"], bool(events or told["event_file"]))


def _warnings(log: str) -> list[tuple[str, str]]:
    """Returns the component and the text of each warning and error in a log, without repetitions."""
    return list(dict.fromkeys((match[1], match[2]) for match in map(LINE.fullmatch, log.splitlines()) if match))


def _why_unwritable(path: str) -> str:
    """Returns why a file of events cannot be made in this place; "": it can."""
    directory = path if os.path.isdir(path) else os.path.dirname(path) or "."
    if "%" in directory:  # may contain the name of a peer
        return ""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, EVENT_FILE_BYTES)
    except OSError as error:
        return f"cannot write events to {path}: {error.strerror}; set PCCL_EVENTS to a path with %p, or to a directory"
    return ""


def main() -> None:
    """Runs the trial, in a process of its own, and prints what it gives as JSON."""
    told: dict[str, object] = {"setting": "", "failure": "", "milliseconds": 0.0, "event_file": None}
    try:
        pccl.Communicator("127.0.0.1:1").close()
    except (pccl.PCCLError, ValueError) as error:
        told["setting"] = reason_of(error)
    for name in OF_A_RUN:
        os.environ.pop(name, None)
    try:
        with pccl.MasterNode("127.0.0.1:0") as master:
            begun = time.monotonic()
            threads = ThreadPoolExecutor(2)
            for peer in as_completed([threads.submit(_peer, f"127.0.0.1:{master.port}") for _ in range(2)]):
                told["event_file"] = peer.result()
            told["milliseconds"] = 1000 * (time.monotonic() - begun)
    except (pccl.PCCLError, ValueError, OSError, RuntimeError) as error:
        told["failure"] = reason_of(error)
    print(json.dumps(told), flush=True)
    os._exit(0)  # the other peer may wait for the one that failed


def _peer(address: str) -> str | None:
    with pccl.Communicator(address) as comm:
        comm.connect()
        comm.wait_for_peers(2, timeout=SECONDS / 3)
        numbers = (ctypes.c_float * COUNT)(*[1.0] * COUNT)
        place = ctypes.addressof(numbers)
        operand = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT)
        unquantised = pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.NONE)
        descriptor = pccl.ReduceDescriptor(COUNT, pccl.ReduceOp.SUM, 0, operand, unquantised)
        comm.all_reduce_multiple_with_retry([pccl.ReduceOpDescriptor(place, place, descriptor)])
        if numbers[0] != 2 or numbers[COUNT - 1] != 2:
            raise RuntimeError(f"the sum of 1 and 1 is {numbers[0]:g}")
        comm.are_peers_pending()  # a barrier
        return comm.event_file
