"""Schedules, reports and logs of stress runs that never were."""

from __future__ import annotations

from stress import schedule
from stress.reports import OpDone, Range, Stepped

RATES = {"kill": 3, "stop": 1, "cut": 2, "delay": 2, "join": 1}
DRAWN = {"seed": 5, "peers": 4, "seconds": 600.0, "every": 2.0, "rates": RATES, "heartbeat_limit": 1.5}


def draw(**changes):
    return schedule.draw(**{**DRAWN, **changes})


def op(who=0b111, ranges=None, **changes):
    """Of 8 elements, with one range of these codes if no others are given, as (stop, who, the library's names)."""
    made = [Range(*one) for one in ranges or [(8, who)]]
    return OpDone(**{"ranges": made, "world": 3, "check": 99, "tries": 1, "size": 64, "at": 10.0, **changes})


def step(number=1, ops=None, **changes):
    given = {"at": 10.0, "line": 0, "step": number, "work": "reduce", "world": 3, "ops": [op()] if ops is None else ops}
    return Stepped(**{**given, **changes})
