"""What the methods are made of, in one process: outer parameters, their steps, and the state that a joiner gets."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from diloco_reference import Nesterov
from torch import nn

from pccl.diloco import AsyncDiLoCo, DiLoCo, StreamingDiLoCo
from pccl.diloco._base import Arguments, Trainer
from pccl.diloco._compression import Compression
from pccl.diloco._outer import CHUNK, Outer, trained_parameters
from pccl.diloco._state import State, Welcome
from pccl.state import decode

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def outer_of(model: nn.Module, device: str = "cpu") -> Outer:
    return Outer(trained_parameters(model), device)


def test_steps_follow_the_formula_bit_for_bit_and_torch_closely():
    random = np.random.default_rng(1)
    size = CHUNK + 1000  # more than one chunk
    model = nn.ParameterList([torch.from_numpy(random.normal(size=size).astype(np.float32))])
    outer = outer_of(model)
    expected, nesterov = outer.parameters.numpy().copy(), Nesterov(0.7, 0.9)
    torchs = nn.Parameter(outer.parameters.clone())
    sgd = torch.optim.SGD([torchs], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(4):
        gradient = random.normal(size=size).astype(np.float32)
        expected = nesterov.step(expected, gradient)
        torchs.grad = torch.from_numpy(gradient.copy())
        sgd.step()
        outer.step(torch.from_numpy(gradient.copy()), 0.7, 0.9)
        np.testing.assert_array_equal(outer.parameters.numpy(), expected)
    torch.testing.assert_close(outer.parameters, torchs.detach(), rtol=1e-5, atol=1e-5)


def test_pseudo_gradient_is_what_the_inner_steps_have_taken_away():
    model = nn.Linear(3, 2)
    outer = outer_of(model)
    with torch.no_grad():
        model.weight -= 0.5
    out = outer.buffer()
    outer.pseudo_gradient(out)
    assert torch.allclose(out, torch.tensor([0.5] * 6 + [0.0] * 2))
    outer.write_model()
    outer.pseudo_gradient(out)
    assert not out.any()


@pytest.mark.parametrize("device", ["cpu:0", pytest.param("cuda", marks=needs_gpu)])
def test_a_device_is_the_one_that_tensors_there_have(device):
    assert outer_of(nn.Linear(3, 2), device).device == torch.empty(1, device=device).device


def test_copies_are_waited_for_and_not_the_whole_gpu(monkeypatch):
    outer = outer_of(nn.Linear(3, 2))
    calls = []

    class FakeEvent:
        def synchronize(self):
            calls.append("waited")

    class FakeStream:
        def record_event(self):
            calls.append("recorded")
            return FakeEvent()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: calls.append(device) or FakeStream())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("it waits for the whole GPU"))
    outer.device = torch.device("cuda", 1)
    outer._wait_for_copies()
    assert calls == [torch.device("cuda", 1), "recorded", "waited"]


def test_low_precision_has_fp32_outer_parameters_and_no_gradient_of_rounding():
    model = nn.Linear(5, 5).to(torch.bfloat16)
    outer = outer_of(model)
    out = outer.buffer()
    outer.step(torch.full((outer.size,), 1e-4), 0.7, 0.9)  # less than bfloat16 can tell
    outer.write_model()
    outer.pseudo_gradient(out)
    assert outer.parameters.dtype is torch.float32
    assert not out.any()
    assert not torch.equal(outer.parameters, outer.parameters.bfloat16().float())


def test_the_default_data_type_of_torch_changes_nothing():
    expected, outer = (outer_of(nn.ParameterList([torch.linspace(0, 1, 100)])) for _ in range(2))
    expected.step(torch.full((100,), 1e-3), 0.7, 0.9)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        outer.step(torch.full((100,), 1e-3, dtype=torch.float32), 0.7, 0.9)
        made = outer_of(nn.Linear(2, 2))
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(outer.parameters, expected.parameters)
    assert {made.parameters.dtype, made.momentum.dtype, made.buffer().dtype} == {torch.float32}


def test_outer_parameters_that_the_model_has_rounded_stay():
    model = nn.Linear(5, 5).to(torch.bfloat16)
    outer = outer_of(model)
    outer.parameters += 1e-4  # less than bfloat16 can tell
    outer.write_model()
    saved = outer.parameters.clone()
    outer.read_model()
    assert torch.equal(outer.parameters, saved)
    with torch.no_grad():
        model.weight += 1
    outer.read_model()
    assert torch.equal(outer.parameters[:25], model.weight.detach().float().flatten())
    assert torch.equal(outer.parameters[25:], saved[25:])


def test_shared_parameters_count_once_and_frozen_ones_not_at_all():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    outer = outer_of(model)
    assert [part.name for part in outer.parts] == ["0.weight", "0.bias", "1.bias"]
    assert outer.size == 16 + 4 + 4


def test_models_of_other_shapes_differ_by_name():
    wide, tall = (dict(outer_of(nn.Linear(*shape, bias=False)).entries()) for shape in ((2, 6), (6, 2)))
    assert list(wide) == ["parameter/weight (6, 2)", "momentum"]
    assert list(tall) == ["parameter/weight (2, 6)", "momentum"]


def test_parameters_that_do_not_lie_in_one_piece():
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    outer = outer_of(model)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    outer.write_model()
    assert torch.equal(model.weight, before)
    assert torch.equal(outer.parameters[: before.numel()].view(before.shape), before)


def test_compiled_modules_have_the_same_names():
    model = nn.Sequential(nn.Linear(2, 2))
    names = [part.name for part in outer_of(model).parts]
    assert [part.name for part in outer_of(torch.compile(model)).parts] == names


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (nn.Linear(2, 2).requires_grad_(False), ValueError),
        (nn.Linear(2, 2, device="meta"), ValueError),
        (nn.Linear(2, 2).to(torch.complex64), TypeError),
    ],
)
def test_models_that_cannot_be_averaged(model, error):
    with pytest.raises(error):
        trained_parameters(model)


@needs_gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_on_a_gpu_gets_the_same_bits(device):
    torch.manual_seed(1)
    here = nn.Linear(70, 30)
    there = nn.Linear(70, 30).cuda()
    there.load_state_dict(here.state_dict())
    outers = outer_of(here), outer_of(there, device)
    change = torch.randn(30, 70)
    for model, outer in zip((here, there), outers, strict=True):
        with torch.no_grad():
            model.weight -= change.to(model.weight.device)
        out = outer.buffer()
        assert out.is_pinned() == (model is there)
        outer.pseudo_gradient(out)
        outer.step(out, 0.7, 0.9)
        outer.to_host()
        outer.write_model()
    assert torch.equal(outers[0].host_parameters, outers[1].host_parameters)
    assert torch.equal(outers[0].host_momentum, outers[1].host_momentum)
    assert torch.equal(here.weight, there.weight.cpu())


def test_state_has_numbers_tensors_and_objects():
    generator = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), 3)
    state = State({"epoch": 1, "means": torch.zeros(2), "schedule": generator})
    state["epoch"] += 1
    state["means"] = torch.ones(2)
    assert dict(state)["epoch"] == 2
    assert state["means"].tolist() == [1, 1]
    assert state["schedule"] is generator
    assert [info.name for info in state.entries()] == ["state/epoch", "state/means"]
    with pytest.raises(KeyError, match="pass it as"):
        state["other"]
    with pytest.raises(TypeError, match="in place"):
        state["schedule"] = 1
    with pytest.raises(TypeError, match="state 'text' must be"):
        State({"text": "no"})


def test_a_joiner_gets_frozen_parameters_buffers_and_objects():
    def make(seed: int) -> tuple[nn.Module, State]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        return model, State({"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3)})

    old, old_state = make(1)
    old(torch.randn(8, 2))
    old_state["schedule"].last_epoch = 7
    new, new_state = make(2)
    told = decode(Welcome(old, old_state).give())
    joiner = Welcome(new, new_state)
    joiner.prepare(told)
    assert {*joiner.frozen().tensors, *joiner.buffers().tensors} == {*told["frozen"], *told["buffers"]}
    joiner.take(told)
    assert new_state["schedule"].last_epoch == 7
    with pytest.raises(ValueError, match="schedule"):
        Welcome(new, State(None)).prepare(told)
    new[1].running_mean.resize_(0)
    joiner.prepare(told)
    assert new[1].running_mean.shape == (2,)
    with pytest.raises(ValueError, match=r"1\.num_batches_tracked"):
        Welcome(nn.Sequential(new[0], nn.BatchNorm1d(2, track_running_stats=False)), new_state).prepare(told)


def test_compression_is_by_name():
    assert Compression.of(None).options(1) is None
    assert Compression.of("sparse").options(1) is None
    for method in ("int8", "int4", "e3m0"):
        made = Compression(method, block=64, stochastic=True).options(1 << 64 | 5)
        assert (made.block, made.stochastic_seed) == (64, 5)
        assert Compression.of(method).options(5).stochastic_seed is None
    assert Compression.of(Compression("int8")) == Compression("int8")
    for wrong in ({"method": "zip"}, {"k": 0}, {"decay": 2}, {"method": "int8", "block": 5}, {"stochastic": True}):
        with pytest.raises(ValueError, match=r"zip|k must|decay|block|stochastic"):
            Compression(**wrong)


@pytest.mark.parametrize(
    ("kind", "own"),
    [(DiLoCo, set()), (AsyncDiLoCo, {"eager"}), (StreamingDiLoCo, {"fragments", "pattern", "overlap", "mixing"})],
)
def test_signatures_have_the_arguments_of_all_methods_and_the_own(kind: type[Trainer], own: set[str]) -> None:
    shown = inspect.signature(kind).parameters
    common = set(inspect.signature(Trainer).parameters)
    assert set(shown) == common | own
    assert {name for name, one in shown.items() if one.kind is not one.KEYWORD_ONLY} == common - set(Arguments.__annotations__)
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        kind(nn.Linear(1, 1), None, None, speed=1)
