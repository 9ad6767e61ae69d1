"""Backs "Far and slow links" of docs/benchmarks.md: all-reduces over emulated and limited links. Needs root.

Peers live in network namespaces, and sum fp32 tensors out of place, one after another, with `update_topology` after each; the
time is that of the slowest peer. Congestion control is set by the route, as if it were the system's.
*One link* (bench/wan): 1 Gbit/s, 80 ms, a loss of 1e-4, and a queue of one bandwidth-delay product.
*One slow line*: four peers around an emulated switch (bench/switch), of which one has a quarter of the others' rate. The ring
is the first operation, before the master changed anything; the median of the last counts. *Three sites* with two peers each:
what their links allow is 4/3 tensors in and out of each site, half of them over each of its links.
*A rate that halves*: two sites with 76 ms and 100 Mbit/s, and five with 2.4 to 123 ms and 15 to 50 Mbit/s; the rate between
Washington and London becomes half. The next steady state: from the change until the mean rate of three operations stays
within 10 % of the median of the second half. The round trips are averages of August and September 2024 that IBM Cloud
published for its regions; the rates are chosen, so low that two cores do not limit them.
*Quantised*: two peers, what leaves each limited to 1 Gbit/s by tc tbf; methods in turn in the same processes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import harness
import methods
from harness import MIB, BenchError, Peer, Report, Row
from netlab import Lab, Link, Pair, Place, Switch, fleet_at

import pccl

COLD_SECONDS = 10
SLOW_MEGABITS, SITE_MEGABITS = 200, 200
STEADY_SECONDS = 5.0
LAST = 4
"""Operations that count for what the master has chosen."""

NEAR = {(0, 1): Link(megabits=100, delay_ms=38)}
REGIONS = ("Dallas 10", "Dallas 14", "Washington", "Frankfurt", "London")
ROUND_TRIPS = {
    (0, 1): (2.4, 50), (0, 2): (31, 30), (1, 2): (31, 30), (0, 3): (123, 15), (1, 3): (123, 15),
    (2, 3): (91, 20), (0, 4): (113, 15), (1, 4): (113, 15), (2, 4): (76, 20), (3, 4): (13, 40),
}  # fmt: skip
"""Between REGIONS: ms and Mbit/s."""
FAR = {pair: Link(megabits=rate, delay_ms=ms / 2) for pair, (ms, rate) in ROUND_TRIPS.items()}

ALGORITHMS = {
    "uint8 MinMax": pccl.QuantizationOptions(),
    "int8": pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_INT8),
    "int4": pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_INT4),
    "E3M0": pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_E3M0),
}
QUANTISED_BARS = {"uint8 MinMax": 3.0, "int4": 6.0}


class Op(NamedTuple):
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def worker(peer: Peer, address: str, size: int, ops: int, pause: float = 0) -> list[Op]:
    """Sums `ops` times, or with 0 until an order comes; all end after the same operation. Pauses before the last of `ops`."""
    import numpy as np

    source = np.ones(size // 4, dtype=np.float32)
    target = np.empty_like(source)
    peer.barrier.wait()
    time.sleep(0.3 * peer.rank)  # the order of the ring is that of joining
    comm = methods.join_run(address, peer.world)
    methods.settle(comm)
    ends = threading.Event()
    if ops == 0:
        harness.tell(peer, None)

        def await_end() -> None:
            harness.order(peer)
            ends.set()

        threading.Thread(target=await_end, daemon=True).start()
    made: list[Op] = []
    while (target[0] == peer.world if made else True) if ops == 0 else len(made) < ops:
        if pause and len(made) == ops - 1:
            peer.barrier.wait()
            time.sleep(pause)
        source[0] = not ends.is_set()
        begin = time.monotonic()
        comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
        made.append(Op(begin, time.monotonic()))
        if not np.all(target[1:] == peer.world):
            raise BenchError("the sum is wrong")
        comm.update_topology()
    comm.close()
    return made


def slowest(by_rank: Sequence[Sequence[Op]]) -> list[Op]:
    return [max(of_all, key=lambda op: op.seconds) for of_all in zip(*by_rank, strict=True)]


def loop(places: Sequence[Place], size: int, ops: int, pause: float = 0) -> list[float]:
    """Returns the seconds of each operation."""
    with fleet_at(places, worker, size=size, ops=ops, pause=pause) as fleet:
        return [op.seconds for op in slowest(fleet.results())]


def one_link(control: str, size: int, ops: int, exact: bool) -> list[Row]:
    with Lab() as lab:
        places = lab.long_pair(Link(megabits=1000, delay_ms=40, loss=1e-4, exact=exact))
        for place in places:
            lab.congestion(place, control)
        times = loop(places, size, ops + 1, pause=10)
    rates = [size * 8e-6 / seconds for seconds in times]
    cold = rates[max(sum(end <= COLD_SECONDS for end in itertools.accumulate(times[:ops])) - 1, 0)]
    steady = statistics.median(rates[ops // 2 : ops])
    what = f"one link of 1 Gbit/s and 80 ms, {control}"
    return [
        harness.figure(f"{what}: after 10 s", f"{cold:.0f} Mbit/s", "850 Mbit/s", cold >= 850),
        harness.figure(f"{what}: then", f"{steady:.0f} Mbit/s", "900 Mbit/s", steady >= 900),
        harness.figure(f"{what}: after a pause of 10 s", f"{rates[ops]:.0f} Mbit/s"),
    ]


def one_slow_line(size: int, ops: int) -> list[Row]:
    with Switch(4, 1) as switch:
        for index in range(4):
            rate = SLOW_MEGABITS / 4 if index == 2 else SLOW_MEGABITS
            switch.tell(f"up {index} {rate} 0")
            switch.tell(f"down {index} {rate} 0")
        times = loop(switch.places, size, ops)
    chosen = statistics.median(times[-LAST:])
    over = chosen / (size * 8e-6 / (SLOW_MEGABITS / 4))
    what = "one slow line among four"
    return [
        harness.ratio(f"{what}: faster than the ring", 1.3, times[0] / chosen),
        harness.figure(f"{what}: time, of the tensor once over that line", f"{over:.2f} x", "1.15 x", over <= 1.15),
    ]


def three_sites(size: int, ops: int) -> Row:
    with Lab() as lab:
        places = lab.sites((2, 2, 2), Link(megabits=SITE_MEGABITS, delay_ms=40))
        for place in places:
            lab.congestion(place, "cubic")
        times = loop(places, size, ops)
    share = size * 8e-6 * 2 / 3 / SITE_MEGABITS / statistics.median(times[-LAST:])
    what = f"three sites, {harness.size_text(size)}: of what the links between them allow"
    return harness.figure(what, f"{share:.0%}", "85 %", share >= 0.85)


def halved(links: dict[Pair, Link], between: Pair, control: str, size: int, seconds: float) -> Row:
    count = 1 + max(b for _, b in links)
    with Lab() as lab:
        places = lab.sites([1] * count, links)
        for place in places:
            lab.congestion(place, control)
        with fleet_at(places, worker, size=size, ops=0) as fleet:
            fleet.results()
            time.sleep(seconds)
            change = time.monotonic()
            lab.change(replace(links[between], megabits=links[between].megabits / 2), between)
            time.sleep(seconds)
            fleet.send_all(None)
            ops = [op for op in slowest(fleet.results()) if op.begin >= change]
    steady = seconds_to_steady(ops, change)
    told = "never" if steady is None else f"{steady:.1f} s"
    what = f"the rate of a link among {count} sites halves, {control}: the next steady state"
    return harness.figure(what, told, f"{STEADY_SECONDS:g} s", steady is not None and steady <= STEADY_SECONDS)


def seconds_to_steady(ops: Sequence[Op], change: float, over: int = 3, part: float = 0.1) -> float | None:
    """Returns the seconds from the change until rates, averaged over some operations, stay near that of the second half."""
    means = [
        (some[0].begin, sum(op.seconds for op in some) / over) for some in zip(*(ops[at:] for at in range(over)), strict=False)
    ]
    if not means:
        raise BenchError("no operation ended after the change: smaller tensors or longer phases are needed")
    wanted = statistics.median(seconds for _, seconds in means[len(means) // 2 :])
    begin = None
    for moment, seconds in means:
        if abs(seconds - wanted) > part * wanted:
            begin = None
        elif begin is None:
            begin = moment
    return None if begin is None else max(0.0, begin - change)


def quantising(peer: Peer, address: str, size: int, blocks: int) -> harness.Samples:
    import numpy as np

    source = np.random.default_rng(peer.rank).uniform(-1.0, 1.0, size // 4).astype(np.float32)
    target = np.ones_like(source)
    comm = methods.join_run(address, peer.world)

    def reduce(options: pccl.QuantizationOptions | None) -> None:
        comm.all_reduce(source, target, op=pccl.ReduceOp.SUM, quantization_options=options)

    options: dict[str, pccl.QuantizationOptions | None] = {"fp32": None, **ALGORITHMS}
    calls: dict[str, Any] = {name: lambda one=one: reduce(one) for name, one in options.items()}
    samples = harness.alternate(peer, calls, blocks)
    comm.close()
    peer.barrier.wait()
    return samples


def quantised(size: int, blocks: int) -> list[Row]:
    with Lab() as lab:
        places = lab.star(2)
        for place in places:
            lab.limit(place, 1000)
        with fleet_at(places, quantising, size=size, blocks=blocks) as fleet:
            times = harness.slowest(fleet.results())
    median = {name: statistics.median(values) for name, values in times.items()}
    what = f"{harness.size_text(size)} over 1 Gbit/s, against fp32"
    return [
        harness.ratio(f"{name}, {what}", QUANTISED_BARS[name], median["fp32"] / median[name])
        if name in QUANTISED_BARS
        else harness.figure(f"{name}, {what}", f"{median['fp32'] / median[name]:.2f} x")
        for name in ALGORITHMS
    ]


def body(args: argparse.Namespace) -> Report:
    unit = MIB // 16 if args.quick else MIB
    seconds, ops = (8.0, 5) if args.quick else (args.seconds, 12)
    controls = [name for name in ("cubic", "bbr") if name in harness.known_congestion_controls()]
    figures: list[Row] = []
    for control in controls[:1] if args.quick else controls:
        figures += one_link(control, 256 * unit, ops - 2, args.exact)
    figures += one_slow_line(64 * unit, ops)
    figures.append(three_sites(256 * unit, ops))
    for control in controls[:1] if args.quick else controls:
        figures.append(halved(NEAR, (0, 1), control, 8 * unit, seconds))
        figures.append(halved(FAR, (REGIONS.index("Washington"), REGIONS.index("London")), control, 8 * unit, seconds))
    figures += quantised(64 * unit, args.blocks)
    return Report(figures)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=40, help="before and after the rate of a link halves [40]")
    parser.add_argument("--exact", action="store_true", help="packets of the one link arrive each when it is due, not in ticks")


if __name__ == "__main__":
    harness.measure(body, 9, options)
