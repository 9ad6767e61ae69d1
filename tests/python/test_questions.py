"""Answers of masters: what they send is read, and anything else is an error, whatever its bytes are."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pccl import ConnectError
from pccl._core.questions import BY_BYTES, RUNS_MOST, read_runs, read_status, write_remove

NAMES = st.text("abcXYZ019._-", min_size=0, max_size=64)


def runs_body(runs):
    parts = [struct.pack("<B", len(name)) + name.encode() + struct.pack("<I", peers) for name, peers in runs.items()]
    return struct.pack("<I", len(runs)) + b"".join(parts)


@given(st.dictionaries(NAMES, st.integers(0, 2**32 - 1), max_size=RUNS_MOST))
def test_runs(runs):
    body = runs_body(runs)
    assert read_runs(body, "call") == runs
    for cut in (body[:-1], body + b"x"):
        with pytest.raises(ConnectError, match="no answer of this version"):
            read_runs(cut, "call")


@given(st.integers(0, 2), st.booleans(), st.integers(0, 2**64 - 1))
def test_status(activity, completed, ended_ms):
    body = struct.pack("<BBQ", activity, completed, ended_ms)
    assert read_status(body, "call") == (activity != 0, completed, ended_ms)


@pytest.mark.parametrize("read", [read_runs, read_status])
@given(body=st.binary(max_size=600))
def test_noise_is_an_answer_or_a_clear_error(read, body):
    with contextlib.suppress(ConnectError):
        read(body, "call")


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_runs, struct.pack("<I", RUNS_MOST + 1)),
        (read_runs, struct.pack("<IB", 1, 65) + 65 * b"a" + struct.pack("<I", 1)),
        (read_runs, struct.pack("<IB", 1, 1) + b"\n" + struct.pack("<I", 1)),
        (read_status, struct.pack("<BBQ", 3, 0, 0)),
        (read_status, struct.pack("<BBQ", 0, 2, 0)),
        (read_status, b""),
    ],
    ids=["too many runs", "a name too long", "a line end in a name", "activity 3", "completed 2", "nothing"],
)
def test_what_no_master_sends(read, body):
    with pytest.raises(ConnectError, match="no answer of this version"):
        read(body, "call")


@given(st.text(max_size=200), st.booleans())
def test_who_asks_for_a_removal_fits_its_message(by, at_update):
    body = write_remove(bytes(16), at_update, by)
    assert body[16] == at_update
    assert body[17] == len(body) - 18 <= BY_BYTES
    assert body[18:].decode().isprintable()
