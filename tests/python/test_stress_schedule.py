"""The schedule of faults: one for each seed."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")


from stress import schedule
from stress.schedule import Fault
from stress_runs import RATES, draw


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


SCHEDULE_OF_SEED_1: list[dict[str, object]] = [
    {"at": 0.6453, "kind": "delay", "slot": 2, "seconds": 0.5211},
    {"at": 0.7208, "kind": "kill", "slot": 1, "back": 1.3584, "how": ""},
    {"at": 0.883, "kind": "stop", "slot": 3, "seconds": 2.1563},
]
