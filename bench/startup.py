"""Backs "Under torch.distributed, against gloo" of docs/benchmarks.md: how long imports, masters and init_process_group take.

Two ranks on one host make a process group, call all_reduce of one element, and destroy the group, with gloo and pccl in turn;
the slowest rank counts. pccl has new keys and two masters each time. Programs are new processes in turn; the start of Python
is part of their time, and modules are compiled before. A master is measured from its start to the first connection that it
accepts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import harness
from harness import BenchError, Peer, Report

from pccl.lab.ports import free_ports
from pccl_command.native_master import PROGRAM

BACKENDS = ("gloo", "pccl")
WARM_UPS = 2
COMPILED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
TIMEOUT = timedelta(seconds=60)
POLL_SECONDS = 1e-4
IMPORTS = ("torch.distributed", "pccl.distributed", "pccl", "pccl; pccl.Communicator")
BAR_SECONDS = {"pccl master accepts": 0.03}


def worker(peer: Peer, ports: list[int]) -> dict[str, list[float]]:
    """Returns the seconds of each init, and of each init with the first call, by backend."""
    import torch
    import torch.distributed as dist

    import pccl.distributed._group  # noqa: F401 - once in a process; the table of imports has its time

    torch.set_num_threads(1)
    times: dict[str, list[float]] = {}
    for at, port in enumerate(ports):
        backend = BACKENDS[at % 2]
        peer.barrier.wait()
        start = time.perf_counter()
        store = dist.TCPStore("127.0.0.1", port, peer.world, is_master=peer.rank == 0, timeout=TIMEOUT)
        dist.init_process_group(backend, store=store, rank=peer.rank, world_size=peer.world, timeout=TIMEOUT)
        times.setdefault(f"init_process_group, {backend}", []).append(time.perf_counter() - start)
        dist.all_reduce(torch.ones(1))
        times.setdefault(f"the same and a first call, {backend}", []).append(time.perf_counter() - start)
        dist.destroy_process_group()
    return times


def python_seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=COMPILED)
    return time.perf_counter() - start


def masters() -> dict[str, list[str]]:
    """Returns the commands that start a master. BenchError: this build has no native program."""
    if not os.access(PROGRAM, os.X_OK):
        raise BenchError(f"{PROGRAM} is missing: build it, with `make build`")
    script = Path(sys.executable).with_name("pccl")  # none beside Python where PYTHONPATH names the package
    commands = {"pccl master": [str(script), "master"]} if script.exists() else {}
    return commands | {
        "python -m pccl master": [sys.executable, "-m", "pccl", "master"],
        "python -m pccl.master": [sys.executable, "-m", "pccl.master"],
        "the native program": [PROGRAM],
    }


def accept_seconds(command: list[str]) -> float:
    """Starts a master and returns how long it takes until it accepts a connection."""
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    words = [*command, "--listen", address, "--masters", address]
    start = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=COMPILED) as master:
        while time.perf_counter() - start < TIMEOUT.total_seconds():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                seconds = time.perf_counter() - start
                master.terminate()
                return seconds
            if master.poll() is not None:
                break
            time.sleep(POLL_SECONDS)  # a loop without it would take a core from the master
        master.kill()
    raise BenchError(f"`{' '.join(words)}` does not listen: run it by itself to see why")


def body(args: argparse.Namespace) -> Report:
    programs: dict[str, Callable[[], float]] = {"bare Python": lambda: python_seconds("pass")}
    programs |= {f"import {module}": functools.partial(python_seconds, f"import {module}") for module in IMPORTS}
    programs |= {f"{name} accepts": functools.partial(accept_seconds, command) for name, command in masters().items()}
    samples = [{name: program() for name, program in programs.items()} for _ in range(1 + args.blocks)][1:]
    seconds = {name: [sample[name] for sample in samples] for name in programs}
    with harness.Fleet(worker, 2, ports=free_ports(2 * (WARM_UPS + args.blocks))) as fleet:
        by_rank = fleet.results()
    for name in by_rank[0]:
        seconds[name] = [max(both) for both in zip(*(times[name][WARM_UPS:] for times in by_rank), strict=True)]
    figures = []
    for name, values in seconds.items():
        found, most = harness.summary(values), BAR_SECONDS.get(name, float("inf"))
        bar = "" if most == float("inf") else harness.milliseconds(most)
        figures.append(harness.figure(name, harness.milliseconds(found["median"]), bar, found["median"] <= most))
    return Report(figures, [{"what": name, **harness.summary(values)} for name, values in seconds.items()])


if __name__ == "__main__":
    harness.measure(body, 11)
