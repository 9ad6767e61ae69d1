"""How long imports and init_process_group take: the backend pccl against gloo."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import harness
from harness import Peer, Row

from pccl.lab.ports import free_ports

METHOD = """Two ranks on one host make a process group, call all_reduce of one element once, and destroy the group, again and
again, with gloo and pccl in turn. `init` is init_process_group with the store, `first call` adds the all_reduce; the slowest
rank counts. store: rank 0 serves a TCPStore. torchrun: the launcher serves it, and init_process_group reads the environment.
pccl starts its two masters within `init`. Imports are those of a new interpreter, whose own start is part of the time."""

BACKENDS = ("gloo", "pccl")
WARM_UPS = 2
TIMEOUT = timedelta(seconds=60)
IMPORTS = ("torch.distributed", "pccl.distributed", "pccl")


def worker(peer: Peer, ports: dict[str, list[int]]) -> dict[str, list[tuple[float, float]]]:
    """Returns the seconds of each init, and of each init with the first call, by launch and backend."""
    import os

    import torch
    import torch.distributed as dist

    import pccl.distributed  # noqa: F401 - a launcher's program imports it before, as torch does by itself

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


def import_seconds(module: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


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
    parser.add_argument("--no-imports", action="store_true", help="measure init_process_group alone")
    args = parser.parse_args()
    where = harness.machine()
    from torch.distributed import TCPStore

    count = 2 * (WARM_UPS + args.blocks)
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(count)]
    ports = {"store": free_ports(count), "torchrun": [store.port for store in stores]}
    rows: list[Row] = []
    with busy(args.busy):
        if not args.no_imports:
            imports: dict[str, list[float]] = {module: [] for module in IMPORTS}
            for _ in range(args.blocks):
                for module, seconds in imports.items():
                    seconds.append(import_seconds(module))
            rows += [row(f"import {module}", seconds) for module, seconds in imports.items()]
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
