"""What DiLoCo costs: bytes, time that AsyncDiLoCo does not hide, and its calls in inner steps. Needs root."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import methods
from harness import Master, Peer, Row
from netlab import Lab

import pccl

METHOD = """Bytes: three peers on one host, one outer step of DiLoCo with `sync_every=100`, checks of parity left out, against 100
reduces of all gradients in fp32. Hiding: two peers in two network namespaces whose links are limited by tc tbf; the inner steps
are training steps on one core per peer, as many as make the reduce take 80 % of their time; blocks of outer steps of each method
and of the same inner steps alone in turn, the median over the blocks of the time per outer step on the slower peer. Overhead: a
call of `step()` that makes no outer step, the median of blocks of 10,000."""

EVERY = 100
"""Inner steps of an outer step whose bytes are counted."""

FEWER = {"none": 100, "int8": 390, "int4": 760, "e3m0": 760, "sparse": 5000}
"""By compression: so many times fewer bytes than data parallelism, within 5 %; the scales count."""

SHARE = 0.8
"""Of the inner steps' time that the reduce takes."""

STEP_SECONDS = 0.020
"""A short inner step."""

BLOCK_ROUNDS = 3


def make_model(width: int) -> tuple[Any, Callable[[], None], Any]:
    """A model, a training step of it on one core, and its optimizer."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(32, width)

    def train() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
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


def hide(peer: Peer, address: str, blocks: int, width: int) -> tuple[float, float, int, dict[str, list[float]]]:
    """Seconds of a reduce and of an inner step, inner steps of a round, and seconds per round of each method, block by block."""
    import torch

    from pccl import diloco

    model, train, optimizer = make_model(width)
    comm = methods.join_run(address, peer.world)
    whole = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    for _ in range(2):
        train()
        comm.all_reduce(whole, op=pccl.ReduceOp.AVG)
    reduces = timed(lambda: comm.all_reduce(whole, op=pccl.ReduceOp.AVG), 5, peer)
    inner = timed(train, 20, peer)
    agreed = torch.tensor([statistics.median(reduces), statistics.median(inner)], dtype=torch.float64)
    comm.all_reduce(agreed, op=pccl.ReduceOp.MAX)
    reduce_seconds, inner_seconds = agreed.tolist()
    steps = max(1, round(reduce_seconds / SHARE / inner_seconds))
    comm.close()
    peer.barrier.wait()

    def alone() -> list[float]:
        return timed(lambda: [train() for _ in range(steps)], BLOCK_ROUNDS, peer)

    def with_method(name: str) -> list[float]:
        made = getattr(diloco, name)(model, pccl.Communicator(address), optimizer, sync_every=steps, peers=peer.world)
        with made:

            def one() -> None:
                done = None
                while done is None:
                    train()
                    done = made.step()

            one()  # the first of AsyncDiLoCo waits for no average
            seconds = timed(one, BLOCK_ROUNDS, peer)
        peer.barrier.wait()
        return seconds

    calls: dict[str, Callable[[], list[float]]] = {
        "inner steps alone": alone,
        "AsyncDiLoCo": lambda: with_method("AsyncDiLoCo"),
        "DiLoCo": lambda: with_method("DiLoCo"),
    }
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(blocks):
        for name in sorted(calls, reverse=bool(block % 2)):
            rounds[name].append(statistics.mean(calls[name]()))
    return reduce_seconds, inner_seconds, steps, rounds


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


def run() -> None:
    parser = harness.parser(__doc__, blocks=7)
    parser.add_argument("--width", type=int, default=768, help="of the four layers of the model whose reduce is to be hidden")
    parser.add_argument("--megabits", type=float, default=100, help="rate of the link of each peer")
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []

    with Master() as master, harness.Fleet(count_bytes, 3, address=master.address) as fleet:
        sent = fleet.results()[0]
    for compression, fewer in FEWER.items():
        ratio = EVERY * sent["gradients"] / sent[compression]
        rows.append(
            {"what": f"bytes of data parallelism over those of DiLoCo, compression {compression}", "value": ratio, "unit": "x"}
        )
        bars.append(harness.ratio_bar(f"bytes, H = {EVERY}, 3 peers, compression {compression}", 0.95 * fewer, ratio))

    with Master() as master, harness.Fleet(time_step, 1, address=master.address, blocks=args.blocks) as fleet:
        overhead = fleet.results()[0]
    rows.append({"what": "step() without an outer step", "value": overhead * 1e6, "unit": "µs"})
    share = overhead / STEP_SECONDS
    bars.append(harness.bar("step() in an inner step of 20 ms", "below 1 %", f"{share:.4%}", share < 0.01))

    with Lab() as lab:
        places = lab.pair()
        for place in places:
            lab.limit(place, args.megabits)
        home = places[0]
        with (
            Master(home.address, home.namespace) as master,
            harness.Fleet(
                hide,
                2,
                namespaces=[place.namespace for place in places],
                address=master.address,
                blocks=args.blocks,
                width=args.width,
            ) as fleet,
        ):
            results = fleet.results()
    reduce_seconds, inner_seconds, steps, _ = results[0]
    rows.append({"what": f"the reduce, {args.megabits:g} Mbit/s", "value": reduce_seconds * 1e3, "unit": "ms"})
    rows.append({"what": f"{steps} inner steps", "value": steps * inner_seconds * 1e3, "unit": "ms"})
    medians = {}
    for name in results[0][3]:
        medians[name] = statistics.median(max(block) for block in zip(*(rounds[name] for *_, rounds in results), strict=True))
        rows.append({"what": f"an outer step, {name}", "value": medians[name] * 1e3, "unit": "ms"})
    slower = medians["AsyncDiLoCo"] / medians["inner steps alone"] - 1
    what = f"AsyncDiLoCo, {args.megabits:g} Mbit/s, the reduce {SHARE:.0%} of the inner steps, against inner steps alone"
    bars.append(harness.bar(what, "at most 5 % slower", f"{slower:+.1%}", slower <= 0.05))
    harness.report(args, "diloco_costs", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
