"""Sparse forms against NumPy, their residuals, bytes that nobody has encoded, and an average of one."""

import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pccl
from pccl._peer.sparse import CHUNK, SparseAverage, decode_add, encode, form_bytes

KS = (1, 2, 7, 64, 4096)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def decoded(form, numel, k):
    total = np.zeros(numel, np.float32)
    decode_add(form, total, k=k)
    return total


def random_tensor(seed, numel):
    return (np.random.default_rng(seed).standard_normal(numel) ** 3).astype(np.float32)


def check_against_numpy(values, k):
    """Only the k largest of a chunk are sent, as 0, one or two times one scale, with the rest in the residual."""
    residual = np.empty_like(values)
    form = encode(values, k=k, residual_out=residual)
    assert len(form) == form_bytes(values.size, k)
    sent = decoded(form, values.size, k)
    assert (residual == values - sent).all()
    for at in range(0, values.size, CHUNK):
        x, y = values[at : at + CHUNK], sent[at : at + CHUNK]
        allowed = np.argsort(-np.abs(x), kind="stable")[:k]
        assert not np.delete(y, allowed).any()
        taken = y != 0
        assert (np.sign(y[taken]) == np.sign(x[taken])).all()
        levels = np.unique(np.abs(y[taken]))
        assert len(levels) <= 2
        if len(levels) == 2:
            assert levels[1] == 2 * levels[0]
        if x.any():
            assert taken.any()
            assert np.square(x.astype(np.float64) - y).sum() < np.square(x.astype(np.float64)).sum()


@given(hnp.arrays(np.float32, st.integers(1, 300), elements=FLOATS), st.sampled_from(KS))
@settings(max_examples=150)
@example(np.float32([3.4028235e38, -3.4028235e38, 1e-45]), 2)
@example(np.full(5, 1e-45, np.float32), 3)
def test_any_tensor(values, k):
    check_against_numpy(values, k)


@pytest.mark.parametrize("numel", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77])
@pytest.mark.parametrize("k", KS)
def test_chunks(numel, k):
    check_against_numpy(random_tensor(k, numel), k)


def test_bytes():
    assert form_bytes(CHUNK) == 116
    assert form_bytes(1000 * CHUNK) == 116_000
    for members in range(2, 6):  # per-step float32: a ring all-reduce sends 2 (n - 1) / n times its tensor, this n - 1 forms
        per_step = 100 * 2 * (members - 1) / members * 4 * CHUNK
        assert per_step / ((members - 1) * form_bytes(CHUNK)) > 5000


def test_decay_and_in_place():
    values, residual = random_tensor(1, 5000), random_tensor(2, 5000)
    wanted = (values + np.float32(0.25) * residual).astype(np.float32)
    before = residual.copy()
    form = encode(values, residual=residual, decay=0.25)
    assert (residual == before).all()
    assert form == encode(values, residual=residual, decay=0.25, residual_out=residual)
    assert (residual == wanted - decoded(form, 5000, 64)).all()


@given(st.binary(max_size=200), st.integers(1, 60), st.sampled_from((1, 3, 64)))
@settings(max_examples=300)
def test_any_bytes(octets, numel, k):
    """Refused without a trace, or added: nothing outside of the tensor is written."""
    room = np.full(numel + 64, 7, np.float32)
    total = room[32:-32]
    sized = (octets * (form_bytes(numel, k) // max(1, len(octets)) + 1) or bytes(10_000))[: form_bytes(numel, k)]
    for form in (octets, sized):
        before = total.copy()
        try:
            decode_add(form, total, k=k)
        except pccl.UsageError:
            assert (total == before).all()
    assert (room[:32] == 7).all()
    assert (room[-32:] == 7).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_not_finite(odd):
    values, residual = random_tensor(3, 2 * CHUNK), np.empty(2 * CHUNK, np.float32)
    values[5000] = odd
    sent = decoded(encode(values, residual_out=residual), values.size, 64)
    assert np.isfinite(residual).all()
    assert np.isfinite(sent[:CHUNK]).all()
    assert np.isnan(sent[5000])
    assert np.isnan(sent).sum() == 64


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda x: encode(x, k=0), pccl.UsageError, "1 to 4096"),
        (lambda x: form_bytes(sys.maxsize // 4 + 1), pccl.UsageError, "memory"),
        (lambda x: decode_add(encode(x), x, k=0), pccl.UsageError, "1 to 4096"),
        (lambda x: decode_add(b"\xff" * form_bytes(x.size), x), pccl.UsageError, "not a sparse form of 100 elements"),
        (lambda x: encode(x, k=4097), pccl.UsageError, "1 to 4096"),
        (lambda x: encode(x, decay=np.nan), pccl.UsageError, "finite"),
        (lambda x: encode(x.astype(np.float64)), AssertionError, "float32"),
        (lambda x: encode(x, residual=x[1:]), AssertionError, "sizes must be equal"),
        (lambda x: decode_add(encode(x), x, weight=np.inf), pccl.UsageError, "finite"),
        (lambda x: decode_add(encode(x)[1:], x), pccl.UsageError, "bytes"),
        (lambda x: SparseAverage(x, decay=1.5), ValueError, "decay"),
    ],
)
def test_wrong_arguments(call, kind, words):
    with pytest.raises(kind, match=words):
        call(random_tensor(0, 100))


def test_nothing():
    assert encode(np.zeros(0, np.float32)) == b""
    decode_add(b"", np.zeros(0, np.float32))


def test_alone():
    """The average of one is what it would have sent; nothing is lost, over many steps."""
    average = SparseAverage(np.zeros((50, 100), np.float32), k=8, decay=1)
    shadow = np.zeros((50, 100))
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
        comm.connect()
        for step in range(50):
            gradient = random_tensor(step, 5000).reshape(50, 100)
            shadow += gradient
            info = average.average_async(comm, gradient, weight=2).wait()
            assert info.members == (comm.uuid,)
            shadow -= gradient
        before = average.residual.copy()
        average.average_async(comm, np.ones((50, 100), np.float32), weight=0).wait()
        assert (average.residual == before).all()
        with pytest.raises(AssertionError, match="elements"):
            average.average_async(comm, np.zeros(3, np.float32))
        with pytest.raises(ValueError, match="weight"):
            average.average_async(comm, np.zeros((50, 100), np.float32), weight=-1)
    np.testing.assert_allclose(shadow, average.residual, atol=1e-4)


def test_torch():
    torch = pytest.importorskip("torch")
    values = torch.from_numpy(random_tensor(4, 5000))
    residual = torch.empty(5000)
    form = encode(values, residual_out=residual)
    assert form == encode(values.numpy())
    assert isinstance(SparseAverage(values).residual, torch.Tensor)
