"""The log of the core: it never delays the library, and it reaches `logging`."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from pccl._core import log
from pccl.lab.ports import free_ports

DEADLINE = 120

PEER = """
    import sys, threading
    import numpy as np
    import pccl

    with pccl.Communicator(sys.argv[1], master_recovery_limit=60) as comm:
        comm.connect(60)
        while comm.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
            comm.update_topology()
        for line in sys.stdin:
            print("sum", int(comm.all_reduce(np.ones(4, np.float32), op=pccl.ReduceOp.SUM, retry=True) and 1), flush=True)
    print("closed", flush=True)
"""


def start(script: str, *arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def full_pipe():
    """A pipe without room: (descriptor to read from, descriptor to write to)."""
    reader, writer = os.pipe()
    again = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(again, b"." * 4096)
    except BlockingIOError:
        pass
    os.close(again)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def master(port: int, **options) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-m", "pccl.master", "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True, **options
    )
    assert "listening" in process.stdout.readline()
    return process


def reduce_once(peers: list[subprocess.Popen]) -> None:
    for peer in peers:
        peer.stdin.write("go\n")
        peer.stdin.flush()
    for peer in peers:
        assert peer.stdout.readline() == "sum 1\n"


@pytest.fixture
def processes():
    """Processes that are killed at the end, whatever happened."""
    started: list[Any] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.timeout(DEADLINE)
def test_a_master_whose_standard_error_is_full_serves_and_ends(full_pipe, processes):
    reader, writer = full_pipe
    (port,) = free_ports(1)
    processes.append(master(port, stderr=writer))
    peers = [start(PEER, f"127.0.0.1:{port}") for _ in range(2)]
    processes += peers
    reduce_once(peers)
    os.read(reader, 1 << 20)
    peers[1].send_signal(signal.SIGKILL)  # the master has a line for it
    said = b""
    while b"lost peer" not in said:
        said += os.read(reader, 1 << 16)
    assert re.search(rb"dropped \d+ log lines", said)
    peers[0].stdin.close()
    assert peers[0].stdout.read() == "closed\n"
    processes[0].send_signal(signal.SIGTERM)
    assert processes[0].wait(DEADLINE) == 0


@pytest.mark.timeout(DEADLINE)
def test_a_peer_whose_standard_error_is_full_outlives_its_master(full_pipe, processes):
    (port,) = free_ports(1)
    first = master(port, stderr=subprocess.DEVNULL)
    processes.append(first)
    peers = [start(PEER, f"127.0.0.1:{port}", stderr=full_pipe[1]), start(PEER, f"127.0.0.1:{port}")]
    processes += peers
    reduce_once(peers)
    first.kill()
    first.wait()
    processes.append(master(port, stderr=subprocess.DEVNULL))
    reduce_once(peers)
    for peer in peers:
        peer.stdin.close()
        assert peer.stdout.read() == "closed\n"
        assert peer.wait(DEADLINE) == 0


RUN = """
    import logging, sys
    import pccl

    configure = sys.argv[1]
    if configure == "root":
        logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="%(levelname)s|%(name)s|%(message)s")
    elif configure == "warnings":
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s|%(name)s|%(message)s")
    elif configure == "own":
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(levelname)s|%(name)s|%(message)s"))
        logging.getLogger("pccl").addHandler(handler)
        logging.getLogger("pccl").setLevel(25)
    elif configure == "slow":  # a line is still on its way when the program ends
        import time
        logging.basicConfig(stream=sys.stdout)
        logging.getLogger("pccl.peer").addFilter(lambda record: time.sleep(0.3) is None)
    elif configure == "refused":  # the thread that hands the lines over
        import threading
        start = threading.Thread.start
        def refuse(thread):
            if thread.name == "pccl:log":
                raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = refuse
        logging.basicConfig(stream=sys.stdout)
    elif configure == "null":
        logging.getLogger("pccl").addHandler(logging.NullHandler())
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
        comm.connect()
        master.interrupt()
        master.wait()
        while "dead" not in repr(comm):
            pass
"""


def run(configure: str, **environment: str) -> tuple[str, str]:
    clean = {name: value for name, value in os.environ.items() if name != "PCCL_LOG_LEVEL"}
    process = start(RUN, configure, stderr=subprocess.PIPE, env={**clean, **environment})
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.timeout(DEADLINE)
@pytest.mark.parametrize("configure", ["root", "own"])
def test_lines_reach_a_configured_logging_once(configure):
    out, err = run(configure)
    assert err == ""
    assert len(re.findall(r"^NOTICE\|pccl\.master\|admitted peer", out, re.MULTILINE)) == 1
    assert len(re.findall(r"^ERROR\|pccl\.peer\|the communicator is dead", out, re.MULTILINE)) == 1


@pytest.mark.timeout(DEADLINE)
def test_an_exit_waits_for_the_line_that_is_on_its_way():
    out, _ = run("slow")
    assert "the communicator is dead" in out


@pytest.mark.timeout(DEADLINE)
def test_the_level_of_logging_and_of_the_environment_hold():
    out, err = run("warnings")
    assert err == ""
    assert "NOTICE" not in out
    assert "ERROR|pccl.peer|the communicator is dead" in out
    assert run("root", PCCL_LOG_LEVEL="NONE") == ("", "")


@pytest.mark.timeout(DEADLINE)
@pytest.mark.parametrize("configure", ["none", "null", "refused"])
def test_lines_go_to_standard_error_without_a_handler_or_a_thread(configure):
    out, err = run(configure)
    assert out == ""
    assert len(re.findall(r"pccl NOTICE \[\d+\] master: admitted peer", err)) == 1
    assert len(re.findall(r"pccl ERR \[\d+\] peer: the communicator is dead", err)) == 1


def test_the_order_of_levels_is_that_of_logging():
    assert list(log.LEVELS) == sorted(log.LEVELS)
