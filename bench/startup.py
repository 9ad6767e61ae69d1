"""How long imports, masters and init_process_group take: the backend pccl against gloo."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import harness
from harness import BenchError, Peer, Row

from pccl.lab.ports import free_ports
from pccl_command.native_master import PROGRAM

METHOD = """Two ranks on one host make a process group, call all_reduce of one element once, and destroy the group, again and
again, with gloo and pccl in turn. `init` is init_process_group with the store, `first call` adds the all_reduce; the slowest
rank counts. store: rank 0 serves a TCPStore. torchrun: the launcher serves it, and init_process_group reads the environment.
pccl has new keys and two masters each time. Programs are new processes in turn; the start of Python is part of the time of those
that it runs, and modules are compiled before. A master is measured from its start to the first connection that it accepts."""

BACKENDS = ("gloo", "pccl")
WARM_UPS = 2
COMPILED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
TIMEOUT = timedelta(seconds=60)
POLL_SECONDS = 1e-4
BARE, MASTER = "bare Python", "pccl master accepts"
IMPORTS = ("torch.distributed", "pccl.distributed", "pccl", "pccl; pccl.MasterNode", "pccl; pccl.Communicator")


def worker(peer: Peer, ports: dict[str, list[int]]) -> dict[str, list[tuple[float, float]]]:
    """Returns the seconds of each init, and of each init with the first call, by launch and backend."""
    import torch
    import torch.distributed as dist

    import pccl.distributed._group  # noqa: F401 - once in a process; the table of imports has its time

    torch.set_num_threads(1)
    one = torch.ones(1)
    times: dict[str, list[tuple[float, float]]] = {}
    for launch, listed in ports.items():
        for at, port in enumerate(listed):
            backend = BACKENDS[at % 2]
            arguments: dict[str, Any] = {"timeout": TIMEOUT}
            peer.barrier.wait()
            start = time.perf_counter()
            if launch == "torchrun":
                os.environ |= {
                    "RANK": str(peer.rank),
                    "WORLD_SIZE": str(peer.world),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                }
            else:
                store = dist.TCPStore("127.0.0.1", port, peer.world, is_master=peer.rank == 0, timeout=TIMEOUT)
                arguments |= {"store": store, "rank": peer.rank, "world_size": peer.world}
            dist.init_process_group(backend, **arguments)
            made = time.perf_counter() - start
            dist.all_reduce(one)
            times.setdefault(f"{launch} {backend}", []).append((made, time.perf_counter() - start))
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


def burn() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that keep processors busy."""
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--busy", type=int, default=0, help="how many other processes keep the processors busy meanwhile")
    parser.add_argument("--init-only", action="store_true", help="measure init_process_group alone")
    args = parser.parse_args()
    where = harness.machine()
    from torch.distributed import TCPStore

    count = 2 * (WARM_UPS + args.blocks)
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(count)]
    ports = {"store": free_ports(count), "torchrun": [store.port for store in stores]}
    rows: list[Row] = []
    with busy(args.busy):
        if not args.init_only:
            programs: dict[str, Callable[[], float]] = {BARE: lambda: python_seconds("pass")}
            programs |= {f"import {module}": functools.partial(python_seconds, f"import {module}") for module in IMPORTS}
            programs |= {f"{name} accepts": functools.partial(accept_seconds, command) for name, command in masters().items()}
            samples = [{name: program() for name, program in programs.items()} for _ in range(1 + args.blocks)][1:]
            rows += [row(name, [sample[name] for sample in samples]) for name in programs]
            if MASTER in programs:
                rows.append(row(f"{MASTER}, less {BARE}", [sample[MASTER] - sample[BARE] for sample in samples]))
        with harness.Fleet(worker, 2, ports=ports) as fleet:
            by_rank = fleet.results()
    for name in by_rank[0]:
        pairs = [list(zip(*both, strict=True)) for both in zip(*(times[name][WARM_UPS:] for times in by_rank), strict=True)]
        rows.append(row(f"{name}: init", [max(made) for made, _ in pairs]))
        rows.append(row(f"{name}: init and first call", [max(called) for _, called in pairs]))
    harness.report(args, "startup", f"{METHOD} Busy processes beside: {args.busy}.", where, rows, [])


def row(what: str, seconds: list[float]) -> Row:
    time_ = harness.summary(seconds)
    return {"what": what, **{f"{key}_ms": time_[key] * 1e3 for key in ("median", "min", "max")}, "blocks": len(seconds)}


if __name__ == "__main__":
    harness.main(run)
