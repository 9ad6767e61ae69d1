"""Who differs from the majority, and in what."""

from __future__ import annotations

import numpy as np
import pytest

import pccl
from pccl.state._parity import judge

A, B, C, D = (1, 1), (2, 2), (3, 3), (4, 4)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([(A, B)] * 3, None),
        ([(A, B)], None),
        ([(A, B), (A, C), (A, B)], (1, (0, 2), (1,))),
        ([(A, B), (A, C), (D, B), (A, C), (A, C)], (0, (1, 3, 4), (0, 2))),
        ([(A, B), (A, C)], (1, (), (0, 1))),
        ([(A, B), (A, C), (A, B), (A, C)], (1, (), (0, 1, 2, 3))),
        ([(A, B), (A, C), (D, B)], (0, (), (0, 1, 2))),  # each entry has a majority, and no state has
        ([(A, B), (A, B), (A, C), (A, D)], (1, (), (0, 1, 2, 3))),  # half is no majority
    ],
)
def test_majorities(rows, verdict):
    assert judge(rows) == verdict


def test_what_cannot_be_compared_is_refused_before_others_are_met():
    with pccl.Communicator("127.0.0.1:1") as comm:  # is not connected, so what gets further is another error
        with pytest.raises(ValueError, match="policy must be one of 'raise', 'repair', 'expel', not 'vote'"):
            comm.check_parity({"x": np.zeros(1)}, policy="vote")
        with pytest.raises(TypeError, match=r"state must be a SharedState, a torch.nn.Module or a dict"):
            comm.check_parity([np.zeros(1)])
        fixed = np.zeros(1)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match="entry 'x' is read-only"):
            comm.check_parity({"x": fixed}, policy="repair")
        with pytest.raises(pccl.UsageError, match="not connected"):
            comm.check_parity({"x": fixed})
