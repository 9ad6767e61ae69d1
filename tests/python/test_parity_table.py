"""Who differs from the majority, and in what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pccl
from pccl.state._parity import CUT_BYTES, judge, pieces_of

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


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
def test_parts_have_each_byte_once(parts):
    sizes = [0, 3, 1000, 8, 0, 4096, 1]
    found = [piece for turn in range(5, 5 + parts) for piece in pieces_of(sizes, turn, parts)]
    assert sorted(byte for place, first, size in found for byte in ((place, at) for at in range(first, first + size))) == [
        (place, at) for place, size in enumerate(sizes) for at in range(size)
    ]
    assert {first % CUT_BYTES for _, first, _ in found} == {0}
    most = max(sum(size for _, _, size in pieces_of(sizes, turn, parts)) for turn in range(parts))
    assert most <= sum(sizes) / parts + CUT_BYTES + 1


def test_what_cannot_be_compared_is_refused_before_others_are_met():
    with pccl.Communicator("127.0.0.1:1") as comm:  # is not connected, so what gets further is another error
        with pytest.raises(ValueError, match="policy must be one of 'raise', 'repair', 'expel', not 'vote'"):
            comm.check_parity({"x": np.zeros(1)}, policy="vote")
        for fraction in (0, -1, 2, 1e-9, float("nan"), "all"):
            with pytest.raises(ValueError, match="fraction must be a number from"):
                comm.check_parity({"x": np.zeros(1)}, fraction=fraction)
        with pytest.raises(TypeError, match="group must be a Group"):
            comm.check_parity({"x": np.zeros(1)}, group=[0, 1])
        with pytest.raises(TypeError, match=r"state must be a SharedState, a torch.nn.Module or a dict"):
            comm.check_parity([np.zeros(1)])
        fixed = np.zeros(1)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match="entry 'x' is read-only"):
            comm.check_parity({"x": fixed}, policy="repair")
        with pytest.raises(ValueError, match=r"entry 'x' is expanded .* pass its clone\(\)"):
            comm.check_parity({"x": torch.zeros(1).expand(4)}, policy="repair")
        for sparse in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
            with pytest.raises(TypeError, match="entry 'x' is sparse; pass its indices and its values"):
                comm.check_parity({"x": sparse})
        nested: Any
        for nested in ({"y": torch.zeros(1)}, 3, None, [torch.zeros(1)]):
            with pytest.raises(TypeError, match=r"entry 'x' is neither a tensor nor an array, but .* flat dict of tensors"):
                comm.check_parity({"x": nested})
        with pytest.raises(pccl.UsageError, match=r"^check_parity: .*not connected"):
            comm.check_parity({"x": torch.zeros(2, dtype=torch.complex64).conj()}, policy="repair")
        with pytest.raises(pccl.UsageError, match=r"^check_parity: .*not connected"):
            comm.check_parity({"x": fixed})
        with pytest.raises(pccl.UsageError, match=r"^replay: .*not connected"):
            comm.replay(lambda x: x, [np.zeros(1)])
