"""The demo's model and its state: what peers hold alike, and what a newcomer receives."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from demo_runs import task  # noqa: E402

from pccl import SharedState  # noqa: E402  # after the skips
from pccl.demo.corpus import load_corpus  # noqa: E402
from pccl.demo.worker import (  # noqa: E402
    Batches,
    Shape,
    TrainingState,
    generate,
    validation_loss,
)

torch.set_num_threads(1)  # these models are too small for more
SMALL = Shape(vocabulary=20, context=8, width=16, heads=2, layers=1, batch=4)


def test_parameters_and_gradients_are_views_of_the_flat_tensors() -> None:
    state = TrainingState(SMALL, seed=1, steps=10)
    state.compute_gradients(torch.randint(20, (4, 9)))
    bounds = (state.weights.data_ptr(), state.weights.data_ptr() + 4 * state.weights.numel())
    for parameter in state.model.parameters():
        assert bounds[0] <= parameter.data_ptr() < bounds[1]
    flat = torch.cat([parameter.grad.flatten() for parameter in state.model.parameters()])
    assert torch.equal(flat, state.gradients)
    assert flat.abs().sum() > 0


def test_buckets_cover_the_gradients_in_place() -> None:
    state = TrainingState(SMALL, seed=1, steps=10)
    buckets = state.buckets(4)
    for number, bucket in enumerate(buckets):
        bucket.fill_(number)
    assert sum(len(bucket) for bucket in buckets) == len(state.gradients)
    assert state.gradients[0] == 0
    assert state.gradients[-1] == 3


def test_same_seed_and_gradients_give_the_same_bytes() -> None:
    states = [TrainingState(SMALL, seed=7, steps=10) for _ in range(2)]
    windows = torch.randint(20, (4, 9))
    for _ in range(3):
        for state in states:
            state.compute_gradients(windows)
            state.apply_gradients()
    assert states[0].digest() == states[1].digest()
    assert states[0].digest() != TrainingState(SMALL, seed=8, steps=10).digest()


def receive(target: SharedState, source: SharedState) -> None:
    """What a sync does to a newcomer, without a network."""
    source._collect("test")
    for to, of in zip(target._tensor_infos, source._tensor_infos, strict=True):
        assert (to.name, to.numel, to.dtype) == (of.name, of.numel, of.dtype)
        ctypes.memmove(to.data_ptr, of.data_ptr, of.numel * of.dtype.itemsize)
    target._restore()


def test_who_has_received_the_state_goes_on_exactly() -> None:
    corpus = load_corpus(None)
    shape = Shape(vocabulary=len(corpus.vocabulary), context=8, width=16, heads=2, layers=1, batch=4)
    batches = Batches(corpus, task(index=1, shard=1), shape)
    old = TrainingState(shape, seed=7, steps=10)

    def train(state: TrainingState, batches: Batches, steps: int) -> None:
        for _ in range(steps):
            state.compute_gradients(batches.draw())
            state.apply_gradients()

    train(old, batches, 3)
    new = TrainingState(shape, seed=8, steps=10)
    random = torch.get_rng_state()  # one generator per process: here both states have it in turn
    new.digest()
    torch.set_rng_state(random)
    old_digest = old.digest()
    receive(new.shared, old.shared)
    assert (new.step, new.digest()) == (3, old_digest)
    ends = []
    for state in (old, new):
        torch.set_rng_state(random)
        train(state, Batches(corpus, task(index=3, shard=1), shape), 4)
        ends.append(state.digest())
    assert ends[0] == ends[1]


def test_the_shards_of_a_step_are_drawn_apart_but_from_the_same_random_numbers() -> None:
    corpus = load_corpus(None)
    shape = Shape(vocabulary=len(corpus.vocabulary), batch=4)
    drawn, after = [], []
    for shard in range(3):
        torch.manual_seed(5)
        drawn.append(Batches(corpus, task(shard=shard), shape).draw())
        after.append(torch.get_rng_state())
    assert len({tuple(batch.flatten().tolist()) for batch in drawn}) == 3
    assert torch.equal(after[0], after[1])
    assert torch.equal(after[0], after[2])


def test_model_learns_a_repeated_text() -> None:
    state = TrainingState(SMALL, seed=1, steps=400)
    text = torch.arange(2000) % 20
    before = validation_loss(state.model, text, windows=16)
    for _ in range(400):
        starts = torch.randint(len(text) - 9, (4,))
        state.compute_gradients(text[starts[:, None] + torch.arange(9)])
        state.apply_gradients()
    assert validation_loss(state.model, text, windows=16) < before / 10
    assert generate(state.model, [3, 4, 5], length=5, seed=1) == [6, 7, 8, 9, 10]
