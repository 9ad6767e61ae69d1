"""The pure parts of `pccl stress`: the schedule, the buffers, the judge, the log. What is planted must be found."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import random
import socket
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")

import numpy as np
from click.testing import CliRunner
from rich.console import Console

from pccl.cli import main
from pccl.lab import ports
from pccl.lab.events import EventLog
from pccl.lab.folder import alone_in
from pccl.lab.ports import RANGE, NoPortError, free_ports
from pccl.lab.processes import Usage
from pccl.stress import backends, command, schedule
from pccl.stress.content import CODES, DTYPES, LEAST_COUNT, Constants, Pattern, codes_in
from pccl.stress.judge import CLAIMS, GrowthLimits, Judge, growth, trend
from pccl.stress.recording import Recording, differences
from pccl.stress.reports import Accepted, Alone, Ended, Expelled, Flaw, OpDone, Range, Report, Stepped, Task, Waiting
from pccl.stress.schedule import Fault
from pccl.stress.workload import IMPATIENT, QUANTIZED, STEP_KINDS, WAYS, plan_step

sys.path.append(str(backends.OTHERS))
from groups import Agent, Group  # of bench/stress

# ---- schedule ----

RATES = {"kill": 3, "stop": 1, "cut": 2, "delay": 2, "join": 1}
DRAWN = {"seed": 5, "peers": 4, "seconds": 600.0, "every": 2.0, "rates": RATES, "heartbeat_limit": 1.5}


def draw(**changes):
    return schedule.draw(**{**DRAWN, **changes})


def test_a_seed_makes_one_schedule():
    assert draw() == draw()
    assert draw() != draw(seed=6)
    # written down, so that a log of today is repeated as it was by the library of tomorrow
    assert draw(seed=1, seconds=6.0) == [Fault(**fault) for fault in SCHEDULE_OF_SEED_1]


def test_the_rates_are_kept():
    faults = draw(seconds=20_000.0)
    assert len(faults) == pytest.approx(10_000, rel=0.05)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    for kind, rate in RATES.items():
        assert sum(fault.kind == kind for fault in faults) == pytest.approx(10_000 * rate / 9, rel=0.1)
    assert draw(rates={}) == []
    assert {fault.kind for fault in draw(rates={"master": 1})} == {"master"}


def test_somebody_is_spared_in_each_half():
    for seed in range(50):
        faults = draw(seed=seed, peers=2)
        first, second = (schedule.spared(seed, 2, at, 600.0) for at in (1.0, 599.0))
        assert {first, second} == {0, 1}
        for fault in faults:
            if fault.kind in ("kill", "stop"):
                assert fault.slot != (first if fault.at < 300 else second)


def test_a_stop_outlasts_the_limit_and_a_delay_does_not():
    faults = draw(seconds=5000.0)
    assert all(fault.seconds > 1.5 for fault in faults if fault.kind == "stop")
    assert all(0 < fault.seconds < 1.5 for fault in faults if fault.kind == "delay")
    assert {fault.how for fault in faults if fault.kind == "cut"} == set(schedule.CUTS)
    assert {fault.how for fault in faults if fault.kind == "kill"} == set(schedule.KILLS)
    visits = [fault for fault in faults if fault.kind == "join"]
    assert len({fault.slot for fault in visits}) == len(visits)
    assert min(fault.slot for fault in visits) == 4


def test_every_other_master_stays_away_where_there_is_a_standby():
    times = [fault.back for fault in draw(seconds=4000.0, rates={"master": 1}, standbys=1)]
    away = [back for back in times if back >= schedule.STANDBY_SECONDS[0]]
    assert len(away) == pytest.approx(len(times) / 2, rel=0.1)
    assert max(set(times) - set(away)) <= schedule.MASTER_BACK_SECONDS[1]
    assert max(fault.back for fault in draw(seconds=4000.0, rates={"master": 1})) <= schedule.MASTER_BACK_SECONDS[1]


def test_rates_are_read():
    assert schedule.read_rates("kill=3, stop=1,join") == {"kill": 3, "stop": 1, "join": 1}
    assert schedule.read_rates("") == {}
    assert schedule.read_rates("kill=0") == {}
    assert schedule.read_rates(schedule.rates_text(schedule.DEFAULT_RATES)) == schedule.DEFAULT_RATES
    for wrong in ("kick=1", "kill=", "kill=x", "kill=-1", "kill=nan", "kill=1,kill=2"):
        with pytest.raises(ValueError, match="ki"):
            schedule.read_rates(wrong)


# ---- workload ----


def test_all_peers_plan_the_same():
    plans = [plan_step(3, step, 10_000) for step in range(500)]
    assert plans == [plan_step(3, step, 10_000) for step in range(500)]
    assert plans != [plan_step(4, step, 10_000) for step in range(500)]
    assert {plan.kind for plan in plans} == set(STEP_KINDS)
    assert {plan.way for plan in plans if plan.kind == "reduce"} == set(WAYS)
    assert {op.dtype for plan in plans for op in plan.ops} == set(DTYPES)
    assert max(op.count for plan in plans for op in plan.ops if plan.way == "resume") > 4 * 10_000
    assert {op.average for plan in plans for op in plan.ops if plan.way == "resume"} == {True, False}
    assert {op.quantized for plan in plans for op in plan.ops} == set(QUANTIZED)
    assert {plan.timeout for plan in plans} == set(IMPATIENT)
    assert all(LEAST_COUNT <= op.count <= 10_000 for plan in plans for op in plan.ops if plan.way != "resume")
    assert all(plan.inner in (1, 2, 4) for plan in plans if plan.kind == "diloco")


# ---- content ----


def total(pattern, codes, count, shift):
    result = np.zeros(count, pattern.dtype)
    for code in codes:
        result += pattern.fill(np.empty(count, pattern.dtype), code, shift)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [LEAST_COUNT, 9, 1000, 20_001])
def test_a_sum_tells_who_is_in_it(dtype, count):
    pattern = Pattern(dtype)
    rng = random.Random(count)
    for _ in range(8):
        codes = rng.sample(range(CODES), rng.randint(1, 12))
        shift = rng.getrandbits(30)
        reading = pattern.read(total(pattern, codes, count, shift), shift)
        assert reading.fault == ""
        assert codes_in(reading.who) == sorted(codes)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("members", [2, 3, 5, 7])
def test_an_average_tells_who_is_in_it(dtype, members):
    pattern = Pattern(dtype)
    average = total(pattern, range(members), 5000, 17) / np.dtype(dtype).type(members)
    assert pattern.read(average, 17, members).who == (1 << members) - 1
    assert pattern.read(average, 17, members).fault == ""
    assert pattern.read(average, 17, members + 1).fault != ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_piece_of_a_sum_tells_who_is_in_it(dtype):
    pattern = Pattern(dtype)
    first, last = total(pattern, [1, 7, 30], 5000, 23), total(pattern, [1, 30], 5000, 23)
    for start in (1024, 1027, 4992):
        mixed = np.concatenate([first[:start], last[start:]])
        assert codes_in(pattern.read(mixed[:start], 23).who) == [1, 7, 30]
        assert pattern.read(mixed[start:], 23, start=start) == pattern.read(last, 23)
        assert pattern.read(mixed[start:], 23, start=start + 1).fault != ""
        assert pattern.read(mixed, 23).fault != ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_everyone_at_once_is_exact(dtype):
    pattern = Pattern(dtype)
    reading = pattern.read(total(pattern, range(CODES), 100, 3), 3)
    assert reading.fault == ""
    assert reading.who == (1 << CODES) - 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda good, stale, twice: np.concatenate([good[:700], good[700:701] + 1, good[701:]]), id="one element"),
        pytest.param(lambda good, stale, twice: np.roll(good, 512), id="shifted"),
        pytest.param(lambda good, stale, twice: np.concatenate([good[:512], stale[512:]]), id="stale piece"),
        pytest.param(lambda good, stale, twice: stale, id="stale"),
        pytest.param(lambda good, stale, twice: np.concatenate([good[:512], twice[512:]]), id="a piece added twice"),
        pytest.param(lambda good, stale, twice: twice, id="added twice"),
        pytest.param(lambda good, stale, twice: np.concatenate([good[:-32], good[-32:] * 0]), id="the end missing"),
    ],
)
def test_planted_errors_are_read(dtype, harm):
    pattern = Pattern(dtype)
    codes = [0, 5, 9]
    good = total(pattern, codes, 2000, 40)
    stale = total(pattern, codes, 2000, 41)
    twice = good + pattern.fill(np.empty_like(good), 5, 40)
    assert pattern.read(good, 40).fault == ""
    assert pattern.read(harm(good, stale, twice).astype(dtype), 40).fault != ""


def test_constants_tell_who_is_in_them():
    constants = Constants()
    good = total(constants, [3, 31], 50, 0)
    assert codes_in(constants.read(good, 0).who) == [3, 31]
    for wrong in (good + 0.5, good * np.nan, good * 0, np.concatenate([good, good[:1] + 1])):
        assert constants.read(wrong, 0).fault != ""


# ---- judge ----


def op(who=0b111, ranges=None, **changes):
    """Of 8 elements, with one range of these codes if no others are given, as (stop, who, the library's names)."""
    made = [Range(*one) for one in ranges or [(8, who)]]
    return OpDone(**{"ranges": made, "world": 3, "check": 99, "tries": 1, "size": 64, "at": 10.0, **changes})


def step(number=1, ops=None, **changes):
    given = {"at": 10.0, "line": 0, "step": number, "work": "reduce", "world": 3, "ops": [op()] if ops is None else ops}
    return Stepped(**{**given, **changes})


@pytest.fixture
def judge():
    made = Judge(heartbeat_limit=1.5, bound=12.0)
    for number in range(3):
        made.started(number, number, number, 0.0)
    return made


def broken(judge):
    return [violation.claim for violation in judge.violations]


def test_a_good_run_passes(judge):
    for serial in range(3):
        judge.take(serial, Accepted(at=0.0, world=3, seconds=0.1, life=0))
        judge.take(serial, step())
        judge.take(serial, step(2, [], state="abc"))
    judge.gone(2, 11.0, -9, expected=True)
    judge.started(3, 2, 3, 11.5)
    for serial in (0, 1):
        judge.take(serial, step(3, [op(who=0b011, world=2, tries=2)]))
    for serial in (0, 1, 3):
        judge.take(serial, step(4, [op(who=0b1011)]))
        judge.take(serial, Ended(at=12.0, line=0, step=4, state="abc"))
    judge.finish(13.0, [0, 1, 3])
    assert broken(judge) == []


@pytest.mark.parametrize(
    ("one", "other", "claim"),
    [
        (op(world=2), None, "contributors"),
        (op(who=0b110, world=2), None, "contributors"),  # not in its own result
        (op(who=0b1000111, world=4), None, "contributors"),  # nobody has that code
        (op(), op(check=98), "agreement"),
        (op(), op(who=0b011, world=2), "agreement"),
        (op(), op(tries=2), "agreement"),
    ],
)
def test_wrong_contributors_and_disagreement_are_found(judge, one, other, claim):
    judge.take(0, step(ops=[one]))
    if other:
        judge.take(1, step(ops=[other]))
        assert broken(judge) == []  # one of them may not have survived it
        for serial in (0, 1):
            judge.take(serial, step(2, []))
    assert claim in broken(judge)


AGAIN = op(who=0b011, world=2, tries=2)
FROM_THE_MIDDLE = op(ranges=[(4, 0b111), (8, 0b011)], world=0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("end", ["expelled", "killed"])
@pytest.mark.parametrize(
    ("left", "others", "claims"),
    [
        pytest.param(op(), AGAIN, [], id="they made it again without the one that is gone"),
        pytest.param(op(), FROM_THE_MIDDLE, [], id="or some of it"),
        pytest.param(op(), op(), [], id="all agree"),
        pytest.param(op(who=0b101, world=2), FROM_THE_MIDDLE, ["agreement"], id="it has another result where they have it"),
        pytest.param(op(check=98), op(), ["agreement"], id="they have it"),
        pytest.param(op(tries=2), op(), ["agreement"], id="at another try"),
    ],
)
def test_who_is_gone_need_not_agree_with_what_was_made_without_it(judge, left, others, claims, end, order):
    # seed 114: a peer that was stopped found all inputs of an op when it woke
    judge.stopped(2, 5.0, 9.9)
    reports = {0: step(ops=[others]), 1: step(ops=[others]), 2: step(ops=[left])}
    for serial in order:
        judge.take(serial, reports[serial])
    if end == "expelled":
        judge.take(2, Expelled(at=10.1, detail="silent"))
        judge.take(2, Accepted(at=10.2, world=3, seconds=0.1, life=1))
    else:
        judge.gone(2, 10.1, -9, expected=True)
    for serial in (0, 1):
        judge.take(serial, step(2, [op(who=0b011, world=2)]))
    assert set(broken(judge)) == set(claims)


def test_a_member_must_agree_also_with_what_was_made_without_it(judge):
    for serial, one in ((0, AGAIN), (1, AGAIN), (2, op())):
        judge.take(serial, step(ops=[one]))
    for serial in range(3):
        judge.take(serial, step(2, []))
    assert broken(judge) == ["agreement"]


@pytest.mark.parametrize(
    ("ranges", "claims"),
    [
        ([(4, 0b111, ["a", "b", "c"]), (8, 0b011, ["a", "b"])], []),
        ([(4, 0b111, ["a", "b", "c"]), (8, 0b011, ["a", "c"])], ["contributors"]),  # the library names another
        ([(4, 0b011, ["a", "b"]), (8, 0b111, ["a", "b", "c"])], []),  # the first segment was made again
        ([(4, 0b011, ["a", "b"]), (8, 0b101, ["a", "c"])], ["contributors"]),  # one of them came in the middle
        ([(4, 0b110, ["b", "c"]), (8, 0b111, ["a", "b", "c"])], ["contributors"]),  # not in its own result
    ],
)
def test_every_range_must_have_the_contributors_that_the_library_says(judge, ranges, claims):
    for serial, name in enumerate("abc"):
        judge.take(serial, Accepted(at=0.0, world=3, seconds=0.1, life=0, uuid=name))
    judge.take(0, step(ops=[op(ranges=ranges, world=2)]))
    assert broken(judge) == claims


def test_a_name_may_be_heard_of_before_its_owner(judge):
    one = [(8, 0b011, ["a", "b"])]
    judge.take(0, Accepted(at=0.0, world=2, seconds=0.1, life=0, uuid="a"))
    judge.take(0, step(ops=[op(ranges=one, world=2)]))
    judge.take(0, step(2, ops=[op(ranges=[(8, 0b011, ["a", "x"])], world=2)]))
    judge.take(1, Accepted(at=0.0, world=2, seconds=0.1, life=0, uuid="b"))
    assert broken(judge) == []
    judge.finish(11.0, [])
    assert broken(judge) == ["contributors"]  # nobody was x


def test_goodput_counts_what_was_contributed():
    assert op().reduced == 3 * 64
    assert FROM_THE_MIDDLE.reduced == 3 * 32 + 2 * 32


def test_the_dead_contribute_no_more(judge):
    for serial in range(3):
        judge.take(serial, step(1))
    judge.gone(2, 10.1, -9, expected=True)
    judge.take(0, step(2))  # it may have begun this one
    assert broken(judge) == []
    judge.take(0, step(3))
    assert broken(judge) == ["contributors"]


def test_different_states_are_found(judge):
    judge.take(0, step(5, [], state="abc"))
    judge.take(1, step(5, [], state="abd"))
    assert broken(judge) == ["parity"]


def test_nobody_goes_back(judge):
    judge.take(0, step(5, []))
    judge.take(0, step(5, []))
    assert broken(judge) == ["agreement"]


def test_flaws_and_crashes_and_hangs_are_found(judge):
    judge.take(0, Flaw(at=1.0, claim="sum", detail="element 7"))
    judge.gone(1, 2.0, 1, expected=False)
    judge.hung(2, 3.0, "reduce", 13.0, "peer 0 in meet")
    assert broken(judge) == ["sum", "crash", "hang"]
    assert set(broken(judge)) <= set(CLAIMS)
    assert "peer 2 (process 2, code 2) has been in reduce for 13.0 s" in judge.violations[2].detail


@pytest.mark.parametrize(
    ("told", "explained"),
    [
        (lambda judge: None, False),
        (lambda judge: judge.stopped(0, 5.0, 8.0), True),
        (lambda judge: judge.stopped(0, 9.0, 9.5), False),  # too short to be given up for
        (lambda judge: judge.stopped(1, 5.0, 8.0), False),  # another one
        (lambda judge: judge.cut(0, 9.0), False),  # it is repaired
        (lambda judge: (judge.cut(0, 9.0), judge.cut(1, 9.2)), True),
        (lambda judge: judge.master_died(9.0), True),
    ],
)
def test_an_expulsion_needs_a_cause(judge, told, explained):
    told(judge)
    judge.take(0, Expelled(at=10.0, detail="silent"))
    assert broken(judge) == ([] if explained else ["expelled"])


@pytest.mark.parametrize(
    ("told", "explained"),
    [
        (lambda judge: None, False),  # the next master takes the run up
        (lambda judge: judge.gone(1, 9.5, -9, expected=True), False),  # two of three are more than half
        (lambda judge: (judge.gone(1, 9.5, -9, expected=True), judge.stopped(2, 9.2, 9.9)), True),
        (lambda judge: (judge.gone(1, 5.0, -9, expected=True), judge.gone(2, 9.5, -9, expected=True)), True),  # one of two
        (lambda judge: judge.master_died(9.6), True),
    ],
)
def test_a_master_that_is_followed_by_another_is_no_cause(told, explained):
    judge = Judge(heartbeat_limit=1.5, bound=12.0, recovery=9.0)
    for number in range(3):
        judge.started(number, number, number, 0.0)
    judge.master_died(9.0)
    told(judge)
    judge.take(0, Expelled(at=10.0, detail="no master"))
    assert broken(judge) == ([] if explained else ["expelled"])


def test_who_does_not_leave_with_the_others_is_found(judge):
    judge.take(0, Ended(at=1.0, line=0, step=9, state="a"))
    judge.take(1, Ended(at=1.0, line=0, step=9, state="b"))
    judge.finish(2.0, [0, 1, 2])
    assert broken(judge) == ["end", "end"]


# ---- growth ----

MIB = 1 << 20


def usages(bytes_at, descriptors_at=lambda second: 20, seconds=120):
    rng = random.Random(1)
    return [Usage(second, int(bytes_at(second) + rng.uniform(-1, 1) * MIB), descriptors_at(second)) for second in range(seconds)]


def test_a_leak_is_found():
    assert "bytes" in growth(usages(lambda second: (50 + second) * MIB))
    assert "descriptors" in growth(usages(lambda second: 50 * MIB, lambda second: 20 + second // 5))


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(lambda second: 50, id="level"),
        pytest.param(lambda second: min(second, 10) * 8, id="warms up"),
        pytest.param(lambda second: 50 + 300 * (second % 20 == 0), id="peaks"),
        pytest.param(lambda second: 50 + 20 * (second % 7 > 3), id="saw"),
        pytest.param(lambda second: 90 - second / 2, id="shrinks"),
        pytest.param(lambda second: 50 + second / 20, id="less than the limit"),
    ],
)
def test_no_leak_is_found_where_there_is_none(level):
    assert growth(usages(lambda second: level(second) * MIB)) == ""


def test_short_lives_are_not_judged():
    assert growth(usages(lambda second: second * 100 * MIB, seconds=29)) == ""
    assert growth(usages(lambda second: second * MIB), GrowthLimits(bytes=500 * MIB)) == ""


def test_the_trend_ignores_outliers():
    values = [2.0 * second for second in range(50)]
    values[7] = values[31] = 1e6
    assert trend(range(50), values) == pytest.approx(2.0)
    assert trend([1.0], [5.0]) == 0.0


# ---- agent, cut ----


def test_the_agent_waits_for_all_that_live():
    agent = Agent(patience=2.0)
    assert agent.look(0.0, []) == ([], None)
    for serial in (0, 1, 2):
        agent.waits(serial)
    assert agent.look(0.0, [0, 1, 2]) == ([], Group(generation=1, members=(0, 1, 2)))
    assert agent.look(1.0, [0, 1, 2]) == ([], None)
    agent.waits(3)  # a newcomer: the others are called, once
    assert agent.look(2.0, [0, 1, 2, 3]) == ([0, 1, 2], None)
    agent.waits(0)
    assert agent.look(2.1, [0, 1, 2, 3]) == ([], None)
    agent.gone(1)
    agent.waits(2)
    assert agent.look(2.2, [0, 2, 3]) == ([], Group(generation=2, members=(0, 2, 3)))


def test_the_agent_leaves_out_who_does_not_come():
    agent = Agent(patience=2.0)
    for serial in (0, 1, 2):
        agent.waits(serial)
    agent.look(0.0, [0, 1, 2])
    agent.waits(0)
    agent.waits(1)
    assert agent.look(1.0, [0, 1, 2]) == ([2], None)
    assert agent.look(2.9, [0, 1, 2]) == ([], None)
    assert agent.look(3.0, [0, 1, 2]) == ([], Group(generation=2, members=(0, 1)))
    agent.waits(2)  # it wakes
    assert agent.look(4.0, [0, 1, 2]) == ([0, 1], None)
    agent.gone(0)
    agent.gone(1)
    assert agent.look(9.0, [2]) == ([], None)  # nobody is a group alone


@pytest.mark.parametrize(("how", "broken_count"), [("one reset", 1), ("all reset", 3), ("all shutdown", 3), ("one half", 1)])
def test_a_process_cuts_its_connections_to_others(how, broken_count):
    code = """
import random, socket, sys
from pccl.stress.cut import cut
how, port, kept_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ends = [socket.create_connection(("127.0.0.1", one)) for one in [port] * 3 + [kept_port]]
own = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
own_end = socket.create_connection(("127.0.0.1", own.getsockname()[1]))
own_other = own.accept()[0]
print(cut(how, {kept_port}, random.Random(1)), flush=True)
sys.stdin.readline()
for one in (ends[3], own_end):
    one.sendall(b"x")
print(own_other.recv(1) == b"x")
"""
    with contextlib.ExitStack() as stack:
        listener, kept = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        listener.settimeout(20)
        ports = [str(one.getsockname()[1]) for one in (listener, kept)]
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", code, how, *ports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        others = [stack.enter_context(one.accept()[0]) for one in [listener] * 3 + [kept]]
        assert process.stdout.readline() == f"{broken_count}\n"
        ended = 0
        for other in others[:3]:
            other.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                try:
                    ended += other.recv(1) == b""
                except ConnectionResetError:
                    ended += 1
        assert ended == broken_count
        assert process.communicate("\n", timeout=20)[0] == "True\n"
        assert others[3].recv(1) == b"x"


# ---- reports and log ----


@pytest.mark.parametrize(
    "report",
    [
        Accepted(at=1.5, world=3, seconds=0.1, life=1),
        step(),
        step(3, [], state="ab", received=7, lost=2, caught_up=True),
        step(4, [op(ranges=[(4, 7, ["a"]), (8, 3, [])])]),
        Alone(at=1.0, line=2, step=3),
        Waiting(at=2.0),
        Expelled(at=1.0, detail="the master was silent\nfor long"),
        Flaw(at=1.0, claim="sum", detail="x"),
        Ended(at=1.0, line=1, step=2, state="ff"),
    ],
)
def test_reports_survive_the_socket(report):
    line = report.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Report.from_line(line) == report


@pytest.mark.parametrize("line", [b"{}", b"[]", b'{"kind":"accepted"}', b'{"kind":"nothing","at":1}', b"x"])
def test_what_is_no_report_is_refused(line):
    with pytest.raises(ValueError, match=r"."):
        Report.from_line(line)


def test_tasks_survive():
    task = Task(serial=1, slot=2, code=3, masters="h:1,h:2", seed=4, elements=5, beat=1.0)
    assert Task.from_fields(json.loads(json.dumps(task.to_fields()))) == task


OUTCOME = {"passed": True, "broken": []}


def write_log(path, outcome=OUTCOME):
    faults = draw(seconds=20.0)
    with EventLog(path) as log:
        log.write("start", 0.0, options={"peers": 4, "seed": 5}, faults=[fault.to_fields() for fault in faults])
        applied = [Fault(**{**vars(fault), "step": 10 * number}) for number, fault in enumerate(faults)]
        for fault in applied[:-1]:
            log.write("fault", fault.at, fault=fault.to_fields(), serial=1, met=True)
        if outcome:
            log.write("end", 20.0, outcome=outcome)
    return faults, applied


def test_a_log_is_read_back(tmp_path):
    path = tmp_path / "log"
    faults, applied = write_log(path)
    recording = Recording.read(path)
    assert recording.options == {"peers": 4, "seed": 5}
    assert recording.faults == [*applied[:-1], faults[-1]]
    assert recording.outcome == OUTCOME
    write_log(path, outcome=None)
    assert Recording.read(path).outcome is None


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"event":"start"}', '{"event":"start","options":{},"faults":[{}]}'])
def test_what_is_no_log_is_refused(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(ValueError, match="no "):
        Recording.read(path)
    result = CliRunner().invoke(main, ["stress", "--replay", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2


def test_outcomes_are_compared():
    assert differences(OUTCOME, OUTCOME) == []
    worse = differences(OUTCOME, {"passed": False, "broken": ["hang"]})
    assert worse == ["the recorded run passed, this one failed", "only this run broke 'hang'"]
    other = differences({"passed": False, "broken": ["sum"]}, {"passed": False, "broken": ["hang"]})
    assert other == ["only the recorded run broke 'sum'", "only this run broke 'hang'"]
    assert "cut off" in differences(None, OUTCOME)[0]
    assert "cut off" in differences({**OUTCOME, "cut_short": "ended by SIGINT"}, OUTCOME)[0]


# ---- command ----


def test_without_uvloop_it_says_so_and_goes_on(monkeypatch):
    console = Console(file=io.StringIO())
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = command._loop_factory(console)()
    loop.close()
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert "plain asyncio" in console.file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peers", "1"], "range"),
        (["--faults", "kick=1"], "'kick' is no kind of fault"),
        (["--seconds", "5", "--minutes", "1"], "exclude each other"),
        (["--backend", "mpi"], "mpi"),
        (["--out", "/dev/null/x"], "cannot write"),
        (["--replay", "/nothing"], "does not exist"),
        (["--plant", "wrong-sum"], "No such option"),
        (["--backend", "gloo", "--standbys", "1"], "one master"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, words):
    result = CliRunner().invoke(main, ["stress", "--out", str(tmp_path), *arguments])
    assert result.exit_code == 2, result.output
    assert words in result.output


def test_a_folder_has_one_run_at_a_time(tmp_path):
    with alone_in(tmp_path):
        result = CliRunner().invoke(main, ["stress", "--out", str(tmp_path), "--seconds", "1"])
    assert result.exit_code == 2
    assert "another run writes to" in result.output


def test_other_backends_need_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "OTHERS", tmp_path / "nothing")
    monkeypatch.setattr(backends.Backend, "missing", lambda self: [])
    result = CliRunner().invoke(main, ["stress", "--backend", "gloo", "--out", str(tmp_path), "--seconds", "1"])
    assert result.exit_code == 2
    assert "needs a checkout" in result.output


def test_help_says_what_it_does():
    text = CliRunner().invoke(main, ["stress", "--help"]).output
    for word in ("--fault-every", "--faults", "--replay", "--backend", "Exit status", "kill (SIGKILL"):
        assert word in text


def test_a_replay_takes_its_options_from_the_log(tmp_path):
    write_log(tmp_path / "log")
    result = CliRunner().invoke(main, ["stress", "--replay", str(tmp_path / "log"), "--peers", "3", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--peers from the log" in result.output


SCHEDULE_OF_SEED_1: list[dict[str, object]] = [
    {"at": 0.6453, "kind": "delay", "slot": 2, "seconds": 0.5211},
    {"at": 0.7208, "kind": "kill", "slot": 1, "back": 1.3584, "how": ""},
    {"at": 0.883, "kind": "stop", "slot": 3, "seconds": 2.1563},
]


# ---- ports ----


def test_ports_are_new_each_time_and_never_the_kernels():
    first, last = map(int, RANGE.read_text().split())
    found = [port for _ in range(20) for port in free_ports(3)]
    assert len(set(found)) == 60
    assert not any(first <= port <= last for port in found)


def test_a_port_in_use_is_passed_over(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        [other] = free_ports(1)
        candidates = iter([taken.getsockname()[1], other])
        monkeypatch.setattr(ports, "_candidates", lambda: candidates)
        assert free_ports(1) == [other]


def test_no_port_left_is_an_error_and_no_search_without_end(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(ports, "_candidates", lambda: itertools.repeat(taken.getsockname()[1]))
        monkeypatch.setattr(ports, "MOST", ports.LEAST + 3)
        with pytest.raises(NoPortError, match="from 10000 to 10002 is free"):
            free_ports(1)
