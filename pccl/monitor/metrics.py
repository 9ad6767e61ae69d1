"""What a master tells of a run, for Prometheus and whatever else reads OpenMetrics (docs/monitoring.md#metrics)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from uuid import UUID

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from pccl._core.errors import LossReason
from pccl._core.names import short
from pccl._version import __version__
from pccl._watch.reports import AT_RISK, Diagnosis, JoinerReport, MemberReport
from pccl.monitor.history import MEMBER_VALUES, Event, member_values

MEMBER_METRICS = {
    "operations": ("operations_per_second", "Operations that ended, per second, over the last seconds.", 1.0),
    "operation_ms": ("operation_seconds", "Mean time of an operation from launch to end.", 1e-3),
    "busy": ("operations_busy_ratio", "Share of the time in operations; above 1 with several at once.", 1.0),
    "live": ("operations_in_flight", "Operations that have not ended.", 1.0),
    "oldest": ("oldest_operation_seconds", "Age of the oldest operation in flight.", 1.0),
    "late_ms": ("late_seconds", "How much later than the first member it begins operations, on average.", 1e-3),
    "silent": ("silent_seconds", "Since the master has heard anything of it; 0 up to a second.", 1.0),
    "processor": ("data_thread_ratio", "Share of a processor that its data thread uses.", 1.0),
}
"""By the name of a value: the name of the metric behind "pccl_member_", its meaning, and the factor to seconds."""

COUNTERS = {
    "joined": ("joins", "Members that have joined"),
    "epoch": ("epochs", "Epochs"),
    "failover": ("failovers", "Masters that have taken the run up"),
}
"""By the kind of event that each counts: the name of the metric behind "pccl_", and its meaning."""

GONE = {True: ("losses", "Members that were lost or expelled"), False: ("leaves", "Members that left in order")}
"""Likewise by whether the reason of an event `left` is a loss. The label `reason` has the reason."""

UNITS = ("bytes_per_second", "operations_per_second", "seconds", "ratio")

NUMBERS_MOST = 16
"""Names of numbers that programs report, of all members together."""


class Metrics(Collector):
    """The newest answer, as metrics; many threads may use it."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: Diagnosis | None = None
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._gone = {reason.name.lower(): 0 for reason in LossReason}
        self._events = self._epoch = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def observe(self, told: Diagnosis | None, events: Iterable[Event]) -> None:
        """`told`: the answer, None: there was none; `events`: what was made of it."""
        with self._lock:
            self._told = told
            for event in events:
                self._events += 1
                if event["kind"] in self._counts:
                    self._counts[event["kind"]] += 1
                elif event["kind"] == "left":
                    self._gone[event["reason"]] += 1
            if told is not None:
                if told.epoch > self._epoch > 0:  # several may have come since the last answer
                    self._counts["epoch"] += told.epoch - self._epoch - 1
                self._epoch = told.epoch

    def text(self) -> bytes:
        """What a scrape gets, in the format of OpenMetrics."""
        return bytes(generate_latest(self._registry))  # type: ignore[no-untyped-call]

    def describe(self) -> list[Metric]:
        """None: they are made when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        with self._lock:
            told, counts, gone, seen = self._told, dict(self._counts), dict(self._gone), self._events
        yield InfoMetricFamily("pccl", "The program that exports this.", {"version": __version__})
        yield GaugeMetricFamily("pccl_master_up", "1 if a master has answered the last question.", float(told is not None))
        for kind, (name, meaning) in COUNTERS.items():
            yield CounterMetricFamily(f"pccl_{name}", f"{meaning} since this program has begun.", counts[kind])
        for lost, (name, meaning) in GONE.items():
            family = CounterMetricFamily(f"pccl_{name}", f"{meaning} since this program has begun.", labels=["reason"])
            for reason in LossReason:
                if reason.lost == lost:
                    family.add_metric([reason.name.lower()], gone[reason.name.lower()])
            yield family
        yield CounterMetricFamily("pccl_events", "Events since this program has begun.", seen)
        if told is None:
            return
        yield CounterMetricFamily("pccl_votes", "Votes that have ended in the run.", told.votes)
        yield GaugeMetricFamily("pccl_members", "Members of the run.", len(told.members) or told.peer_count)
        yield GaugeMetricFamily("pccl_epoch", "The epoch in force.", told.epoch)
        labels = {short(member.uuid): [short(member.uuid), member.name] for member in told.members}
        values = {short(member.uuid): member_values(member) for member in told.members}
        for place, name in enumerate(MEMBER_VALUES):
            suffix, meaning, factor = MEMBER_METRICS[name]
            gauge = _gauge(f"pccl_member_{suffix}", meaning, ["member", "name"])
            for id_, one in values.items():
                gauge.add_metric(labels[id_], one[place] * factor)
            yield gauge
        yield _numbers(told, labels)
        at_risk = _gauge("pccl_member_steps_at_risk", "Steps that a loss would cost now.", ["member", "name"])
        missing = _gauge(
            "pccl_member_protection_missing", "1: it is missing; none: all are there.", ["member", "name", "protection"]
        )
        for member in told.members:
            if AT_RISK in member.report:
                at_risk.add_metric(labels[short(member.uuid)], member.report[AT_RISK])
        peers: list[MemberReport | JoinerReport] = [*told.members, *told.joiners]
        for peer in peers:
            for protection in peer.missing:
                missing.add_metric([short(peer.uuid), peer.name, protection], 1.0)
        yield from (at_risk, missing)
        sent = _gauge(
            "pccl_member_sent_bytes_per_second", "Acknowledged by other members; not by shared memory.", ["member", "name"]
        )
        totals: defaultdict[UUID, float] = defaultdict(float)
        for edge in told.edges:
            totals[edge.member] += edge.acked_bytes
        for member in told.members:
            sent.add_metric(labels[short(member.uuid)], totals[member.uuid] / (member.recent_seconds or 1.0))
        yield sent
        cost = _gauge(
            "pccl_finding_cost_ratio", "Share of an operation's time that a finding explains.", ["kind", "member", "other"]
        )
        for finding in told.findings:
            other = short(finding.other) if finding.other else ""
            cost.add_metric([finding.kind.name.lower(), short(finding.member), other], finding.cost)
        yield cost


def _gauge(name: str, meaning: str, labels: list[str]) -> GaugeMetricFamily:
    """Returns a gauge, with the unit with which its name ends, if any."""
    unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")
    return GaugeMetricFamily(name, meaning, labels=labels, unit=unit)


def _numbers(told: Diagnosis, labels: dict[str, list[str]]) -> Metric:
    """What programs have reported. Names beyond NUMBERS_MOST are left out, so that labels stay bounded."""
    gauge = GaugeMetricFamily(
        "pccl_member_report", "Newest number of the member's program, of 16 names at most.", labels=["member", "name", "number"]
    )
    names = set(sorted({name for member in told.members for name in member.report})[:NUMBERS_MOST])
    for member in told.members:
        for name, value in member.report.items():
            if name in names:
                gauge.add_metric([*labels[short(member.uuid)], name], value)
    return gauge
