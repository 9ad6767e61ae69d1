"""Texts and digests of what members need alike."""

from __future__ import annotations

import pytest
import torch

from pccl.state._local.agreement import Terms, TermsError, difference, require_alike, text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (0.1, "0.1"),
        (float("nan"), "nan"),
        (True, "True"),
        (None, "None"),
        ((0.9, 1), "(0.9, 1)"),
        ({"a": [1, 2.5]}, "{a: (1, 2.5)}"),
        (torch.tensor(0.5), "0.5"),
        (torch.zeros(100), "torch.float32 of shape (100,)"),
        (len, "builtin_function_or_method"),
        (torch.optim.SGD, "type"),
    ],
)
def test_equal_numbers_have_one_text(value, text):
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("own", "other", "found"),
    [
        ({"a": "1"}, {"a": "1"}, None),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, ("b", "2", "3")),
        ({"a": "1"}, {}, ("a", "1", "missing")),
        ({}, {"a": "1"}, ("a", "missing", "1")),
        ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, ("entry 0", "a", "b")),
        ({"value 'x'": "None"}, {"value 'x'": "a number"}, None),
        ({"x": "None"}, {"x": "a number"}, ("x", "None", "a number")),
        ({"a": "1" * 1000}, {"a": "2"}, ("a", "1" * 200, "2")),
    ],
)
def test_the_first_difference_is_found(own, other, found):
    assert difference(own, other) == found


def test_terms_are_told_only_if_they_differ():
    def tell(content: bytes) -> list[bytes]:
        raise AssertionError("nothing has to be told")

    terms = Terms({"a": 1}, {"b": float("nan")})
    again = Terms({"a": 1.0}, {"b": float("nan")})
    assert not require_alike("Test", terms, [terms.digests(), again.digests()], tell, "rank 0", 0)
    later = Terms({"a": 1}, {"b": 2})
    assert not require_alike("Test", terms, [terms.digests(), later.digests()], tell, "rank 0", 0, fresh=False)


def test_a_member_goes_on_where_a_newcomer_is_refused(caplog):
    told: list[bytes] = []
    members = [Terms({"a": one}, {}) for one in (1, 1, 2)]
    for rank, one in enumerate(members):
        with pytest.raises(NotImplementedError):
            require_alike("Test", one, [[0], [1]], lambda content: told.append(content) or _stop(), f"rank {rank}", rank)
    for rank, one in enumerate(members[:2]):
        assert require_alike("Test", one, [[0], [1]], lambda _: told, f"rank {rank}", rank, known=[0, 1], fresh=False)
    assert "Test: rank 2 is refused: a is 1 at rank 0 and 2 at rank 2; give the same to all" in caplog.text
    for error in (ValueError, RuntimeError, TermsError):
        with pytest.raises(error, match="a is 1 at rank 0 and 2 at rank 2; give the same to all"):
            require_alike("Test", members[2], [[0], [1]], lambda _: told, "rank 2", 2, known=[0, 1], fresh=False)


def _stop() -> list[bytes]:
    raise NotImplementedError
