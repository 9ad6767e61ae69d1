"""How pccl.distributed orders tensors at a GPU, as far as it can be told without one: with tensors that only say so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pccl.distributed import _tensors  # noqa: E402 - which imports torch
from pccl.distributed._calls import ENDED, Followed  # noqa: E402
from pccl.distributed._launch import _alone  # noqa: E402
from pccl.distributed._work import (  # noqa: E402
    Completer,
    Future,
    Work,
)

GPU = torch.device("cuda:0")
log: list[str] = []


class OnGpu(torch.Tensor):  # type: ignore[name-defined]
    """A tensor of the CPU that says that it is at a GPU."""

    is_cuda = True
    is_cpu = False
    device = GPU

    def record_stream(self, stream: object) -> None:
        log.append("memory kept for the stream")


class Stream:
    cuda_stream = 7

    def record_event(self) -> str:
        log.append("mark")
        return "event"

    def wait_event(self, event: str) -> None:
        log.append(f"after the {event}")

    def synchronize(self) -> None:
        log.append("wait")


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """A stream of the GPU, whose memory all is the driver's."""
    log.clear()
    stream = Stream()
    monkeypatch.setattr(_tensors, "check_known", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)


def at_gpu(*shape: int) -> OnGpu:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).as_subclass(OnGpu)


def test_memory_of_a_gpu_is_taken_as_it_is():
    tensor = at_gpu(2, 3)
    assert _tensors.is_plain(tensor)
    assert not _tensors.is_plain(tensor.t())
    assert _tensors.readable(tensor) is tensor
    assert _tensors.writable(tensor) == (tensor, None)


def test_the_stream_is_the_current_one():
    assert _tensors.stream_of(at_gpu(2)) == _tensors.stream_of((None, at_gpu(2))) == 7
    assert _tensors.stream_of(torch.ones(2)) == _tensors.stream_of((torch.ones(2), None)) == _tensors.stream_of(None) == 0


def test_memory_that_the_driver_does_not_know_is_refused(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="a tensor is on a GPU whose memory cannot be used"):
        _tensors.stream_of(at_gpu(2))


def test_what_is_done_at_the_end_comes_before_what_the_program_does_next():
    tensor = at_gpu(3)

    def finish():
        _tensors._fill(tensor, at_gpu(3) + 1)
        log.append("finished")

    work = Work(Completer(), [Followed(ENDED, finish)], 1.0, [[tensor]])
    work.complete(1.0)  # in another thread
    assert log == ["memory kept for the stream", "finished", "mark"]
    assert work.wait()
    assert log[3:] == ["after the event"]
    assert tensor.tolist() == [1.0, 2.0, 3.0]
    future = torch.futures.Future()
    work.settle(future)
    assert future.done()
    assert log[4:] == ["after the event"]


def test_a_future_of_tensors_at_a_gpu_is_never_one_of_jit():
    plain = Future(None)
    halves = [torch.ones(2, dtype=torch.float16).as_subclass(OnGpu)]
    work = Work(SimpleNamespace(future_of=lambda work: plain), [], 1.0, halves)
    work.for_cpp = True
    future = work.get_future()  # one of jit would wait here
    plain.set_result(work.outcome)
    assert future.value() is halves


def test_tensors_of_the_cpu_need_no_stream():
    work = Work(Completer(), [ENDED], 1.0, [torch.ones(2)])
    assert work.wait()
    assert not log


def test_a_group_of_one_copies_in_the_order_of_the_stream():
    source, target = at_gpu(2, 2), torch.zeros(2, 2).as_subclass(OnGpu)
    _alone({"send": source.data_ptr(), "recv": target.data_ptr(), "keep": (source, target)})
    assert (target == source).all()
    assert log == ["wait"]
    _alone({"send": source.data_ptr(), "recv": source.data_ptr(), "keep": source})
    assert log == ["wait", "wait"]


def test_tensors_of_one_call_are_on_one_device():
    with pytest.raises(TypeError, match="must be on one device, not on cpu and cuda:0"):
        _tensors.same_type("all_gather", [torch.ones(2), at_gpu(2)])
