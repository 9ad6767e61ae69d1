"""Sites with a link between each two of them: the matrix of their rates and delays, and what it allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness import BenchError
from netlab import Link, Pair

CLOUD = """
            Dallas-10  Dallas-14  Washington  Frankfurt
Dallas-14      2.4/50
Washington      31/30      31/30
Frankfurt      123/15     123/15       91/20
London         113/15     113/15       76/20      13/40
"""
"""Round trip in ms / Mbit/s.

The round trips are averages that IBM Cloud published for its regions and for two zones of Dallas, of 31 August to 29 September
2024 (ibm-cloud-docs/vpc, _include-segments/network-latency.md). The rates are chosen: the nearer, the faster, and 1/300 of 4.5 to
15 Gbit/s. Between regions of several clouds, pairs of machines had 1.5 to 15 Gbit/s in January 2022 (30 rows of
skyplane-project/skyplane, profiles/throughput_mini.csv).
"""

PAIR = """
            Washington
London          76/100
"""


class Matrix(NamedTuple):
    names: list[str]
    links: dict[Pair, Link]


def read(text: str) -> Matrix:
    """A matrix in the form of CLOUD: the lower triangle, the names of its columns above it, the names of its rows before it."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        raise BenchError("a matrix has two sites at least")
    names = [lines[0][0], *(line[0] for line in lines[1:])]
    links = {}
    if lines[0] != names[:-1] or len(set(names)) < len(names):
        raise BenchError("the columns of a matrix are its rows, in the same order, without the last one; the first has no row")
    for row, (name, *cells) in enumerate(lines[1:], 1):
        if len(cells) != row:
            raise BenchError(f"{name} has {len(cells)} links in place of {row}")
        for column, cell in enumerate(cells):
            round_trip, slash, rate = cell.partition("/")
            try:
                link = Link(megabits=float(rate), delay_ms=float(round_trip) / 2)
            except ValueError:
                raise BenchError(f"'{cell}' is not MS/MBIT") from None
            if not (slash and 0 < link.megabits < float("inf") and 0 <= link.delay_ms < float("inf")):
                raise BenchError(f"'{cell}' is not MS/MBIT")
            links[column, row] = link
    return Matrix(names, links)


# ---- what links allow, as the rate at which a tensor is reduced: its bits over the time of the op ----

Rates = Mapping[Pair, float]


def partitions(things: list[int]) -> Iterator[list[list[int]]]:
    if not things:
        yield []
        return
    first, *rest = things
    for parts in partitions(rest):
        yield [[first], *parts]
        for index, part in enumerate(parts):
            yield [*parts[:index], [first, *part], *parts[index + 1 :]]


def bound(count: int, rates: Rates) -> float:
    """The most that any way of reducing can reach.

    A tree that joins all sites carries one tensor each way over each of its links, so it is as many trees as fit into the
    links: what leaves the parts of a partition bounds their number, and the least of these bounds can be reached
    (Nash-Williams and Tutte).
    """
    least = float("inf")
    for parts in partitions(list(range(count))):
        if len(parts) > 1:
            part = {site: index for index, sites in enumerate(parts) for site in sites}
            crossing = sum(rate for (a, b), rate in rates.items() if part[a] != part[b])
            least = min(least, crossing / (len(parts) - 1))
    return least


def bound_by_shares(count: int, rates: Rates) -> float:
    """The same where each site owns a share of the tensor and each two exchange their shares: the best shares.

    Sites a and b send each other what a owns and what b owns; so it is the largest sum of x >= 0 with x[a] + x[b] at most the
    rate between them, which lies at a corner of what that allows.
    """
    import numpy as np

    limits = [([1.0 if site in pair else 0.0 for site in range(count)], rate) for pair, rate in rates.items()]
    limits += [([-1.0 if site == own else 0.0 for site in range(count)], 0.0) for own in range(count)]
    rows, most = np.array([row for row, _ in limits]), np.array([limit for _, limit in limits])
    best = 0.0
    for chosen in itertools.combinations(range(len(limits)), count):
        corner = list(chosen)
        if abs(np.linalg.det(rows[corner])) > 0.5:
            x = np.linalg.solve(rows[corner], most[corner])
            if np.all(rows @ x <= most + 1e-9):
                best = max(best, float(x.sum()))
    return best


# ---- a rate over time ----


class Span(NamedTuple):
    """A rate that was measured from one moment to another one."""

    begin: float
    end: float
    rate: float


def steady_rate(spans: list[Span]) -> float:
    """Of the second half."""
    rates = sorted(span.rate for span in spans[len(spans) // 2 :])
    return rates[len(rates) // 2]


def seconds_to_steady(spans: list[Span], change: float, part: float = 0.1) -> float | None:
    """From the change until the rate stays within that part of the one it settles at; None: it does not."""
    wanted = steady_rate(spans)
    begin = None
    for span in spans:
        if abs(span.rate - wanted) > part * wanted:
            begin = None
        elif begin is None:
            begin = span.begin
    return None if begin is None else max(0.0, begin - change)


def averaged(spans: list[Span], count: int) -> list[Span]:
    """Each with the count - 1 before it: the mean of their rates, by time."""
    made = []
    for index in range(count - 1, len(spans)):
        some = spans[index - count + 1 : index + 1]
        seconds = sum(span.end - span.begin for span in some)
        made.append(Span(some[0].begin, some[-1].end, sum(span.rate * (span.end - span.begin) for span in some) / seconds))
    return made
