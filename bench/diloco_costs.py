"""Backs "DiLoCo" of docs/benchmarks.md: bytes of DiLoCo, and the time that AsyncDiLoCo does not hide. Needs root.

Bytes: three peers on one host, one outer step of DiLoCo with `sync_every=100`, checks of parity left out, against 100 reduces
of all gradients in fp32. Hiding: two peers in two network namespaces whose links are limited by tc tbf; the inner steps are
training steps on one core per peer. In each block as many as make the reduce take 80 % of their time are made alone, with
AsyncDiLoCo, alone again, and with DiLoCo, three rounds each; the times of the slower peer, and the median over the blocks of
the ratio to those alone. Overhead: a call of `step()` that makes no outer step, the median of blocks of 10,000.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import methods
from harness import Master, Peer, Report, Row
from netlab import Lab, fleet_at

import pccl

EVERY = 100
"""Inner steps of an outer step whose bytes are counted."""

FEWER = {"none": 100, "int8": 390, "int4": 760, "e3m0": 760, "sparse": 5000}
"""By compression: so many times fewer bytes than data parallelism, within 5 %; the scales count."""

SHARE = 0.8
"""Of the inner steps' time that the reduce takes."""

MEGABITS = 100

BLOCK_ROUNDS = 3


def make_model(width: int) -> tuple[Any, Callable[[], None], Any]:
    """A model, a training step of it on one core, and its optimizer."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, wanted = torch.randn(128, width), torch.randn(128, width)

    def train() -> None:
        optimizer.zero_grad()
        (model(data) - wanted).square().mean().backward()
        optimizer.step()

    return model, train, optimizer


def count_bytes(peer: Peer, address: str) -> dict[str, int]:
    """What this peer sends for an outer step, by compression, and for a reduce of the gradients in fp32."""
    import torch

    from pccl.diloco import DiLoCo

    model, train, optimizer = make_model(512)
    sent: dict[str, int] = {}
    for compression in FEWER:
        comm = pccl.Communicator(address)
        with DiLoCo(model, comm, optimizer, sync_every=1, compression=compression, peers=peer.world) as diloco:
            train()
            done = diloco.step()
            assert done is not None
            assert done.world_size == peer.world
            sent[compression] = done.tx_bytes
        peer.barrier.wait()
    comm = methods.join_run(address, peer.world)
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    sent["gradients"] = comm.all_reduce(gradients, op=pccl.ReduceOp.AVG).tx_bytes
    comm.close()
    peer.barrier.wait()
    return sent


def hide(peer: Peer, address: str, other: str, blocks: int, width: int) -> tuple[float, list[int], dict[str, list[float]]]:
    """Seconds of a reduce, the inner steps of a round in each block, and by method the seconds of a round in each block."""
    import torch

    from pccl import diloco

    model, train, optimizer = make_model(width)
    comm = methods.join_run(other, peer.world)
    whole = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    reduces = timed(lambda: comm.all_reduce(whole, op=pccl.ReduceOp.AVG), 7, peer)

    def slowest(seconds: float) -> float:
        """The same on all peers."""
        agreed = torch.tensor([seconds], dtype=torch.float64)
        comm.all_reduce(agreed, op=pccl.ReduceOp.MAX)
        return agreed.item()

    def alone(steps: int) -> float:
        def one() -> None:
            for _ in range(steps):
                train()
            peer.barrier.wait()  # peers wait for the slowest one in all methods

        return statistics.mean(timed(one, BLOCK_ROUNDS, peer))

    def with_method(name: str, steps: int) -> float:
        made = getattr(diloco, name)(model, pccl.Communicator(address), optimizer, sync_every=steps, peers=peer.world)
        with made:

            def one() -> None:
                done = None
                while done is None:
                    train()
                    done = made.step()

            one()  # the first of AsyncDiLoCo waits for no average
            seconds = statistics.mean(timed(one, BLOCK_ROUNDS, peer))
        peer.barrier.wait()
        return seconds

    reduce_seconds = slowest(statistics.median(reduces[2:]))
    steps, counts = 20, []
    rounds: dict[str, list[float]] = {"inner steps alone": [], "AsyncDiLoCo": [], "DiLoCo": []}
    for _ in range(blocks):
        steps = max(
            1, round(steps * reduce_seconds / SHARE / slowest(alone(steps)))
        )  # cores of a shared host differ from time to time
        before, hidden, after = alone(steps), with_method("AsyncDiLoCo", steps), alone(steps)
        rounds["inner steps alone"].append(slowest((before + after) / 2))
        rounds["AsyncDiLoCo"].append(slowest(hidden))
        rounds["DiLoCo"].append(slowest(with_method("DiLoCo", steps)))
        counts.append(steps)
    comm.close()
    peer.barrier.wait()
    return reduce_seconds, counts, rounds


def timed(call: Callable[[], object], times: int, peer: Peer) -> list[float]:
    """Seconds of each call; all peers begin together."""
    seconds = []
    peer.barrier.wait()
    for _ in range(times):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


def time_step(peer: Peer, address: str, blocks: int) -> float:
    """Seconds of a call of step() that makes no outer step."""
    from pccl.diloco import DiLoCo

    model, _, optimizer = make_model(64)
    with DiLoCo(model, pccl.Communicator(address), optimizer, sync_every=1 << 40) as diloco:
        return statistics.median(timed(lambda: [diloco.step() for _ in range(10_000)], blocks, peer)) / 10_000


def body(args: argparse.Namespace) -> Report:
    width = 256 if args.quick else 768
    figures: list[Row] = []
    with Master() as master, harness.Fleet(count_bytes, 3, address=master.address) as fleet:
        sent = fleet.results()[0]
    for compression, fewer in FEWER.items():
        ratio = EVERY * sent["gradients"] / sent[compression]
        what = f"bytes of data parallelism over those of DiLoCo, `sync_every={EVERY}`, compression {compression}"
        figures.append(harness.figure(what, f"{ratio:.0f} x", f"{0.95 * fewer:.0f} x", ratio >= 0.95 * fewer))
    with Master() as master, harness.Fleet(time_step, 1, address=master.address, blocks=args.blocks) as fleet:
        overhead = fleet.results()[0]
    figures.append(
        harness.figure("a call of `step()` that makes no outer step", f"{overhead * 1e6:.2g} us", "200 us", overhead < 2e-4)
    )
    with Lab() as lab:
        places = lab.pair()
        for place in places:
            lab.limit(place, MEGABITS)
        home = places[0]
        with (
            Master(home.address, home.namespace) as other,
            fleet_at(places, hide, other=other.address, blocks=args.blocks, width=width) as fleet,
        ):
            _, _, rounds = fleet.results()[0]
    alone = rounds.pop("inner steps alone")
    for name, seconds in rounds.items():
        slower = statistics.median(one / other for one, other in zip(seconds, alone, strict=True)) - 1
        bar = "5 %" if name == "AsyncDiLoCo" else ""
        what = f"{name}, the reduce {SHARE:.0%} of the inner steps: longer than these alone by"
        figures.append(harness.figure(what, f"{slower:.1%}", bar, not bar or slower <= 0.05))
    return Report(figures)


if __name__ == "__main__":
    harness.measure(body, 7)
