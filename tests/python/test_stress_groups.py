"""Who is in the next group, where groups do not survive a death (bench/stress)."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")

from stress.groups import Agent, Group


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
