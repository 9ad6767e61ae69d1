"""The history of a run: what a reader of its events knows is what the master told."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import reports
from hypothesis import given
from hypothesis import strategies as st
from reports import edge

from pccl import DepartureReport, Diagnosis, EdgeReport, Finding, FindingKind, JoinerReport, LossReason, MemberReport
from pccl._core.names import short
from pccl._watch.reports import JOINING
from pccl.monitor import history
from pccl.monitor.history import Log, Recorder, create_file, read_file
from pccl.monitor.metrics import Metrics


def member(number: int, **values: Any) -> MemberReport:
    given = {"ops": 20.0, "op_seconds": 1.0, "processor_seconds": 0.5, **values}
    return replace(reports.member(number), address=f"10.0.0.{number}:48149", name=f"host-{number}", **given)


def straggler(of: MemberReport) -> Finding:
    return Finding(
        kind=FindingKind.STRAGGLER, member=of.uuid, other=None, value=1.0, usual=0.1, cost=0.5, confidence=0.9, text="it is late"
    )


def told(
    *members: MemberReport, epoch: int = 1, findings: tuple[Finding, ...] = (), edges: tuple[EdgeReport, ...] = ()
) -> Diagnosis:
    return Diagnosis(findings, members, edges, 5.0, epoch=epoch)


def departure(number: int, reason: LossReason, why: str = "why", ago: float = 0.5) -> DepartureReport:
    of = member(number)
    return DepartureReport(uuid=of.uuid, group=0, rank=number, reason=reason, ago_seconds=ago, why=why, name=of.name)


def kinds(events: list[history.Event]) -> list[str]:
    return [event["kind"] for event in events]


def test_members_come_and_go():
    recorder = Recorder()
    first = recorder.observe(1.0, told(member(1), member(2)))
    assert kinds(first) == ["master", "member", "member", "epoch", "member", "member", "sample"]
    assert [event for event in first if event["kind"] == "epoch"] == [{"at": 1.0, "kind": "epoch", "epoch": 1, "members": 2}]
    later = recorder.observe(2.0, told(member(1), member(3), epoch=2))
    assert [(event["kind"], event.get("member")) for event in later[:3]] == [
        ("left", "00000002"),
        ("joined", "00000003"),
        ("epoch", None),
    ]
    assert later[0]["reason"] == "unknown"
    assert later[1]["name"] == "host-3"
    assert later[1]["address"] == "10.0.0.3:48149"


TEXTS = {
    LossReason.UNKNOWN: "was lost (unknown: why)",
    LossReason.DIED: "was lost (died: why)",
    LossReason.SILENT: "was lost (silent: why)",
    LossReason.UNREACHABLE: "was lost (unreachable: why)",
    LossReason.EXPELLED: "was expelled: why",
    LossReason.DRAINED: "was drained: why",
    LossReason.LEFT: "left: why",
    LossReason.ENDED: "ended: why",
}


@pytest.mark.parametrize("reason", LossReason)
def test_an_event_tells_why_a_member_is_gone(reason):
    recorder, metrics = Recorder(), Metrics()
    answers = [told(member(1), member(2)), replace(told(member(1), epoch=2), departures=(departure(2, reason),))]
    for second, answer in enumerate(answers):
        events = recorder.observe(float(second), answer)
        metrics.observe(answer, events)
    assert events[0] == {
        "at": 1.0,
        "kind": "left",
        "member": "00000002",
        "name": "host-2",
        "reason": reason.name.lower(),
        "text": TEXTS[reason],
    }
    assert "lost" not in TEXTS[reason] or reason.lost
    family = "pccl_losses_total" if reason.lost else "pccl_leaves_total"
    assert f'{family}{{reason="{reason.name.lower()}"}} 1.0' in metrics.text().decode()
    assert recorder.observe(2.0, replace(answers[1], departures=(departure(2, reason, ago=1.5),))) == []
    assert answers[1].to_json()["departures"][0]["reason"] == reason.name.lower()
    assert str(departure(2, reason)) == f"rank 2 (host-2, 00000002) {TEXTS[reason]}, 0 s ago"


def test_a_member_that_comes_and_goes_between_two_answers_is_told():
    recorder = Recorder()
    earlier = departure(8, LossReason.DIED, ago=0.5)
    first = recorder.observe(1.0, replace(told(member(1)), departures=(earlier,)))
    assert "left" not in kinds(first)
    both = (replace(earlier, ago_seconds=1.5), departure(9, LossReason.DIED, ago=0.2))
    events = recorder.observe(2.0, replace(told(member(1)), departures=both))
    assert [(event["kind"], event["member"]) for event in events] == [("left", "00000009")]
    ended = replace(told(), departures=(*both, departure(1, LossReason.ENDED)))
    assert [event["reason"] for event in recorder.observe(3.0, ended) if event["kind"] == "left"] == ["ended"]


def test_a_finding_is_told_once_and_when_it_is_over():
    recorder = Recorder()
    recorder.observe(1.0, told(member(1)))
    found = told(member(1), findings=(straggler(member(1)),))
    assert recorder.observe(2.0, found) == [
        {
            "at": 2.0,
            "kind": "finding",
            "finding": "straggler",
            "member": "00000001",
            "other": "",
            "cost": 0.5,
            "text": "it is late",
        }
    ]
    assert recorder.observe(3.0, found) == []
    (over,) = recorder.observe(4.0, told(member(1)))
    assert (over["kind"], over["finding"], over["member"]) == ("over", "straggler", "00000001")


def test_a_master_that_does_not_answer_is_told_once():
    recorder = Recorder()
    assert kinds(recorder.silence(1.0, "refused")) == ["master"]
    assert recorder.silence(2.0, "refused") == []
    (event,) = [one for one in recorder.observe(3.0, told()) if one["kind"] == "master"]
    assert event["answers"] is True
    assert recorder.silence(4.0, "gone") == [{"at": 4.0, "kind": "master", "answers": False, "text": "gone"}]


def test_values_are_those_of_the_names():
    (sample,) = [one for one in Recorder().observe(1.0, told(member(1))) if one["kind"] == "sample"]
    values = dict(zip(history.MEMBER_VALUES, sample["members"]["00000001"], strict=True))
    assert values == {
        "operations": 2.0, "operation_ms": 50.0, "busy": 0.1, "live": 1.0, "oldest": 0.2, "late_ms": 0.0, "silent": 0.0,
        "processor": 0.05,
    }  # fmt: skip
    one, other = member(1), member(2)
    (sample,) = [e for e in Recorder().observe(1.0, told(one, other, edges=(edge(one, other, 4e6),))) if e["kind"] == "sample"]
    values = dict(zip(history.LINK_VALUES, sample["links"]["00000001 00000002"], strict=True))
    assert values == {"bytes": 2e6, "busy": 0.5, "repeated": 0.02, "round_trip_ms": 80.0, "queue_ms": 0.0}


@given(st.lists(st.dictionaries(st.integers(1, 4), st.integers(0, 3), max_size=4), min_size=1, max_size=80))
def test_samples_that_tell_changes_only_lead_to_the_newest_values(steps):
    """Each step: by member how many operations it has made; all of it goes through JSON."""
    recorder = Recorder()
    known: dict[str, list[float]] = {}
    links: dict[str, list[float]] = {}
    there: set[str] = set()
    for second, counts in enumerate(steps):
        members = [member(number, ops=float(count)) for number, count in sorted(counts.items())]
        edges = tuple(edge(a, b, a.ops * 1e6) for a in members for b in members if a is not b)
        for event in json.loads(json.dumps(recorder.observe(2.0 * second, told(*members, edges=edges)))):
            if event["kind"] in ("member", "joined"):
                there.add(event["member"])
            elif event["kind"] == "left":
                there.discard(event["member"])
                known.pop(event["member"], None)
            elif event["kind"] == "sample":
                known.update(event["members"])
                links.update(event["links"])
                for name in event["quiet"]:
                    links.pop(name)
        assert there == {short(one.uuid) for one in members}
        if members:
            assert {name: known[name] for name in there} == {short(m.uuid): history.member_values(m) for m in members}
            assert set(links) == {f"{short(e.member)} {short(e.other)}" for e in edges if e.acked_bytes}


@pytest.mark.long
@pytest.mark.parametrize("count", [38, 64, 200])
def test_an_hour_of_a_large_run_has_less_than_20_megabytes(count):
    recorder, size = Recorder(), 0
    members = [member(number) for number in range(1, count + 1)]
    for second in range(600):
        changed = [replace(one, ops=float(1 + (second * number) % 97)) for number, one in enumerate(members)]
        edges = tuple(edge(a, b, 1e6 * (1 + (second + number) % 89)) for number, (a, b) in enumerate(pairwise(changed)))
        events = recorder.observe(float(second), told(*changed, edges=edges))
        size += sum(len(json.dumps(event, separators=(",", ":"))) + 1 for event in events)
    assert 6 * size < 20e6


def test_the_newest_events_stay_in_memory():
    log = Log(most_bytes=1000)
    log.add({"at": float(number), "kind": "epoch"} for number in range(100))
    lines, number = log.after(0, 0.0)
    assert number == 100
    assert len(b"".join(lines)) <= 1000
    assert json.loads(lines[-1])["at"] == 99.0
    assert log.after(100, 0.0) == ([], 100)
    assert log.after(10**6, 0.0) == (lines, 100)  # the reader of another log
    assert len(log.after(0, 0.0, most=3)[0]) == 3


def test_a_reader_waits_for_the_next_event():
    log = Log()
    found = []
    reader = threading.Thread(target=lambda: found.append(log.after(0, 30.0)))
    reader.start()
    log.add([{"at": 1.0, "kind": "epoch"}])
    reader.join(30)
    assert found == [([b'{"at":1.0,"kind":"epoch"}'], 1)]


def test_a_file_is_read_back_but_for_a_last_line_that_is_cut_off(tmp_path):
    path = tmp_path / "run.events"
    events = [{"at": float(number), "kind": "epoch", "epoch": number} for number in range(5)]
    log = Log()
    with create_file(str(path)) as log.file:
        log.add(events)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(read_file(str(path))) == events
    path.write_bytes(path.read_bytes()[:-4])
    assert list(read_file(str(path))) == events[:-1]
    with pytest.raises(FileExistsError):
        create_file(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no events"),
        ("{}\n", "has no events"),
        ("\xff\n", "has no events"),
        ('{"kind": "pccl-events", "format": 99}\n', "another version"),
        ('{"kind": "pccl-events", "format": 1}\n{"at": 1}\n', "line 2: this is no event"),
        ('{"kind": "pccl-events", "format": 1}\nnothing\n', "line 2: this is no event"),
        ('{"kind": "pccl-events", "format": 1}\n[1]\n', "line 2: this is no event"),
        ('{"kind": "pccl-events", "format": 1}\n{"at": NaN, "kind": "left"}\n', "line 2: this is no event"),
        ('{"kind": "pccl-events", "format": 1}\n{"at": 1, "kind": "sample"}\n', "line 2: this is no event; remove the line"),
        ('{"kind": "pccl-events", "format": 1}\n' + "[" * 100_000 + "\n", "line 2: this is no event"),
    ],
)
def test_a_file_that_has_no_events(content, words, tmp_path):
    path = tmp_path / "wrong"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=words):
        list(read_file(str(path)))


def test_numbers_of_programs_and_masters_that_take_over():
    recorder = Recorder()
    first = recorder.observe(
        1.0, replace(told(member(1, report={"loss": 0.123456, "nan": float("nan")}), member(2)), generation=1)
    )
    assert first[-1]["report"] == {"00000001": {"loss": 0.1235, "nan": None}}
    same = recorder.observe(2.0, replace(told(member(1, report={"loss": 0.12346, "nan": float("nan")}), member(2)), generation=1))
    assert "sample" not in kinds(same)
    later = recorder.observe(3.0, replace(told(member(1, report={"loss": 0.1}), member(2)), generation=4))
    assert later[0] == {"at": 3.0, "kind": "failover", "generation": 4}
    assert later[-1]["report"] == {"00000001": {"loss": 0.1}}


def test_metrics_count_and_stay_few():
    metrics, recorder = Metrics(), Recorder()
    numbers = {f"n{number:02}": 1.5 for number in range(12)}
    more = {f"z{number:02}": 2.5 for number in range(12)}
    for at, generation in ((1.0, 1), (2.0, 3)):
        answer = replace(told(member(1, report=numbers), member(2, report=more)), generation=generation, votes=7)
        metrics.observe(answer, recorder.observe(at, answer))
    text = metrics.text().decode()
    assert 'pccl_member_report{member="00000001",name="host-1",number="n00"} 1.5' in text
    assert text.count("pccl_member_report{") == 16  # of 24 names
    for line in ("pccl_failovers_total 1.0", "pccl_votes_total 7.0", "pccl_epochs_total 1.0", "pccl_joins_total 0.0"):
        assert line in text.splitlines()
    assert text.count("# TYPE ") <= 40


def test_a_file_that_another_thread_gives_up_while_events_are_added_ends_no_thread():
    class Shared(Log):
        _file: Any = None

        @property
        def file(self) -> Any:
            found, self._file = self._file, None  # the other thread comes after each look
            return found

        @file.setter
        def file(self, given: Any) -> None:
            self._file = given

    log = Shared()
    log.file = kept = io.BytesIO()
    log.add([{"at": 1.0, "kind": "master"}])
    assert kept.getvalue() == b'{"at":1.0,"kind":"master"}\n'
    log.add([{"at": 2.0, "kind": "master"}])
    assert len(log.after(0, 0)[0]) == 2


def test_content_that_differed_is_an_event_once_for_each_revision():
    recorder = Recorder()

    def mismatches(at: float, revision: int, *others: int) -> list[tuple[str, int]]:
        held = [
            replace(member(i), state_revision=revision, state_hash="ab" * 16, state_replaced=i in others) for i in range(1, 4)
        ]
        found = [event for event in recorder.observe(at, told(*held)) if event["kind"] == "state_mismatch"]
        assert all(event["repaired"] and event["at"] == at for event in found)
        return [(event["member"], event["revision"]) for event in found]

    assert mismatches(1.0, 4) == []
    assert mismatches(2.0, 5, 3) == [("00000003", 5)]
    assert mismatches(3.0, 5, 3) == []
    assert mismatches(4.0, 6, 2, 3) == [("00000002", 6), ("00000003", 6)]
    assert mismatches(5.0, 7) == []
    assert mismatches(6.0, 8, 3) == [("00000003", 8)]


def test_states_are_those_of_most_members_of_a_group_and_of_the_members_that_differ():
    def holds(number: int, revision: int | None, digits: str, group: int = 0, replaced: bool = False) -> MemberReport:
        return replace(member(number), group=group, state_revision=revision, state_hash=digits, state_replaced=replaced)

    def states(second: float, *members: MemberReport) -> dict[str, Any]:
        return recorder.observe(second, told(*members))[-1]["state"]

    recorder = Recorder()
    assert states(1.0, member(1), member(2)) == {}
    synced = [
        holds(1, 3, "ab" * 16),
        holds(2, 3, "ab" * 16),
        holds(3, 3, "ab" * 16, replaced=True),
        member(4),
        holds(5, 9, "", 1),
    ]
    assert states(2.0, *synced) == {
        "groups": {"0": (3, "abababab", False), "1": (9, "", False)},
        "others": {"00000003": (3, "abababab", True), "00000004": None},
    }
    quiet = [replace(one, ops=2.0) for one in synced]
    assert states(3.0, *quiet) == {}  # it is as it was
    assert states(70.0, *quiet)["groups"].keys() == {"0", "1"}  # all that is known, once a minute


def joiner(done: int, seconds: float) -> JoinerReport:
    return JoinerReport(
        uuid=reports.member(9).uuid,
        name="host-9",
        group=0,
        address="10.0.0.9:48149",
        does=JOINING[0],
        done_bytes=done,
        total_bytes=4_000_000_000,
        progress_seconds=seconds,
    )


def test_joiners_are_in_the_samples_with_the_time_that_is_left():
    recorder = Recorder()

    def joiners(second: float, *found: JoinerReport) -> dict[str, Any] | None:
        events = recorder.observe(second, replace(told(member(1)), joiners=found))
        return events[-1].get("joiners") if events else None

    assert joiners(1.0) == {}
    assert joiners(2.0, joiner(0, 0.0))["00000009"]["eta"] is None
    assert joiners(3.0, joiner(1_000_000_000, 5.0)) == {
        "00000009": {"name": "host-9", "does": "copies the state", "done": 10**9, "total": 4 * 10**9, "eta": 15.0}
    }
    assert joiners(4.0, joiner(1_000_000_000, 5.0)) is None  # nothing is new
    assert joiners(5.0) == {}
    assert str(joiner(1_000_000_000, 5.0)) == "host-9 copies the state: 1000 of 4000 MB, about 15 s left"


def test_a_newcomer_without_the_state_is_an_event_a_metric_and_one_again_when_it_has_it():
    recorder, metrics = Recorder(), Metrics()

    def observed(second: float, *found: JoinerReport) -> list[dict[str, Any]]:
        now = replace(told(member(1)), joiners=found)
        events = [one for one in recorder.observe(second, now) if one["kind"] == "protection"]
        metrics.observe(now, events)
        return events

    lacking = replace(joiner(1_900_000_000, 0.0), does="waits as a spare")
    assert observed(1.0, joiner(0, 0.0)) == []  # it copies still
    told_of = {"kind": "protection", "member": "00000009", "protection": "spare", "steps": None}
    assert observed(2.0, lacking) == [{"at": 2.0, "missing": True, **told_of}]
    assert observed(3.0, lacking) == []
    assert 'protection_missing{member="00000009",name="host-9",protection="spare"} 1.0' in metrics.text().decode()
    assert observed(4.0, replace(lacking, done_bytes=2_000_000_000)) == [{"at": 4.0, "missing": False, **told_of}]
    admitted = replace(lacking, does="receives the state in its first sync")
    assert [one["protection"] for one in observed(5.0, admitted)] == ["precopy"]
    assert observed(6.0) == []  # who is gone is no news of a protection
    assert observed(7.0, replace(lacking, done_bytes=0, total_bytes=0)) == []  # there is no state yet, or it copies none


def test_a_protection_that_is_missing_is_an_event_a_metric_and_one_again_when_it_is_there():
    recorder, metrics = Recorder(), Metrics()
    recorder.observe(1.0, told(member(1), member(2)))
    lacking = told(member(1, report={"without_holder": 1.0, "without_snapshots": 0.0, "steps_at_risk": 37.0}), member(2))
    found = recorder.observe(1.1, lacking)
    assert found == [
        {"at": 1.1, "kind": "protection", "member": "00000001", "protection": "holder", "missing": True, "steps": 37.0}
    ]
    assert recorder.observe(1.2, lacking) == []
    metrics.observe(lacking, found)
    text = metrics.text().decode()
    assert 'pccl_member_protection_missing{member="00000001",name="host-1",protection="holder"} 1.0' in text
    assert 'pccl_member_steps_at_risk{member="00000001",name="host-1"} 37.0' in text
    assert 'protection="snapshots"' not in text
    (again,) = recorder.observe(1.3, told(member(1, report={"without_holder": 0.0}), member(2)))
    assert (again["missing"], again["steps"]) == (False, None)
