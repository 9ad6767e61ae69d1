"""Arrays at a GPU, as far as they can be told without one (pccl/_core/gpu.py)."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_members import build_driver, driver_environment

import pccl
from pccl import DataType, UsageError
from pccl._core.calls import NativeHandle
from pccl._core.gpu import array_memory, common_stream, hold_stream, is_gpu_array
from pccl._core.tensors import reduce_buffers
from pccl._ops.parts import buffer_of

ROOT = Path(__file__).resolve().parents[2]


class Array:
    """With this interface."""

    def __init__(self, **changes):
        described = {"shape": (2, 3), "typestr": "<f4", "strides": None, "data": (4096, False), "version": 3}
        self.described = {**described, **changes}

    @property
    def __cuda_array_interface__(self):
        return self.described


@pytest.fixture
def known(monkeypatch):
    """All memory is known to the driver."""
    monkeypatch.setattr("pccl._core.gpu.check_known", lambda *_: None)


def test_what_is_one():
    assert is_gpu_array(Array())
    assert not is_gpu_array([1.0])
    assert not is_gpu_array(Array)


def test_a_stream_cannot_wait_for_an_op_of_a_closed_communicator():
    handle = NativeHandle("communicator", object(), lambda _: 0)
    handle.close()
    with pytest.raises(UsageError, match="closed"):
        hold_stream(handle, 0, 7, 0, "wait_stream")


def test_memory(known):
    assert array_memory(Array(), "a") == (4096, 6, DataType.FLOAT, None, False)
    assert array_memory(Array(stream=1), "a")[3] == 0  # the legacy default stream
    assert array_memory(Array(stream=7, typestr="|b1", data=(64, True)), "a") == (64, 6, DataType.BOOL, 7, True)
    assert array_memory(Array(strides=(12, 4)), "a")[1] == 6
    assert array_memory(Array(shape=(0,)), "a")[1] == 0
    assert array_memory(Array(shape=()), "a")[1] == 1


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"typestr": "<c8"}, ValueError, "elements of type <c8 are not supported"),
        ({"strides": (4, 8)}, AssertionError, "a must be contiguous"),
        ({"strides": (24, 4)}, AssertionError, "a must be contiguous"),
    ],
)
def test_refused(known, changes, error, text):
    with pytest.raises(error, match=text):
        array_memory(Array(**changes), "a")


def test_memory_that_no_driver_knows():
    """It would be read as memory of the CPU."""
    if pccl.cuda.is_available():
        pytest.skip("there is a driver")
    with pytest.raises(AssertionError, match=r"send is on a GPU .* used: the CUDA driver .* not installed"):
        reduce_buffers(Array(), Array())


def test_buffers(known):
    pair = reduce_buffers(Array(stream=2), Array(data=(8192, False)))
    assert (pair.send, pair.recv, pair.device, pair.stream) == (4096, 8192, pccl.DeviceType.CUDA, 2)
    with pytest.raises(ValueError, match="recv is read-only"):
        reduce_buffers(Array(), Array(data=(8192, True)))
    with pytest.raises(ValueError, match="must both be"):
        reduce_buffers(Array(), b"")


def test_streams(known):
    assert common_stream([]) == common_stream([("send", None), ("recv", None)]) == 0
    assert common_stream([("send", None), ("recv", 7)]) == common_stream([("send", 7), ("recv", None), ("more", 7)]) == 7
    assert reduce_buffers(Array(stream=1), Array(data=(8192, False))).stream == 0
    two = "is ordered after the stream 0x7 and .* after the stream 0x0: let one of these wait for the other"
    with pytest.raises(ValueError, match=f"send {two}"):
        reduce_buffers(Array(stream=7), Array(stream=1, data=(8192, False)))
    with pytest.raises(ValueError, match=rf"parts\[0\] {two}"):
        buffer_of([Array(stream=7), Array(stream=1, data=(4096 + 24, False))], "parts")


def test_lists(known):
    made = buffer_of([Array(stream=3), Array(data=(4096 + 24, False))], "send")
    assert (made.pointer, made.numel, made.counts, made.stream) == (4096, 12, [6, 6], 3)
    with pytest.raises(AssertionError, match="must follow each other in memory"):
        buffer_of([Array(), Array(data=(8192, False))], "send")
    numpy = pytest.importorskip("numpy")
    with pytest.raises(AssertionError, match=r"send\[0\] is on CUDA and send\[1\] on CPU"):
        buffer_of([Array(), numpy.zeros(6, numpy.float32)], "send")


@pytest.mark.parametrize("script", ["tests/gpu/run.py", "bench/gpu.py"])
def test_scripts_for_a_gpu_are_skipped_without_one(script, tmp_path):
    if pccl.cuda.is_available():
        pytest.skip("there is a driver")
    done = subprocess.run([sys.executable, ROOT / script, "--out", tmp_path / "out"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("skipped: ")
    assert list((tmp_path / "out").iterdir())


@pytest.mark.timeout(300)
def test_training_cases_for_a_gpu_on_the_cpu(tmp_path):
    """What they compare is right where there is no GPU, so that with one they are about the GPU alone."""
    cases = ["replicated", "fully_sharded", "snapshots", "sharded_snapshots", "diloco", "diloco_joiner"]
    command = [sys.executable, ROOT / "tests/gpu/run.py", "--device", "cpu", "--out", tmp_path, *cases]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PCCL_GPU_LIMIT_SECONDS": "100"})
    assert done.returncode == 0, done.stdout
    assert [*json.loads((tmp_path / "results.json").read_text())["cases"]] == cases


@pytest.mark.timeout(300)
def test_the_benchmark_for_a_gpu_on_the_cpu(tmp_path):
    sizes = ["--size", "65536", "--state", "1048576", "--blocks", "1"]
    command = [sys.executable, ROOT / "bench/gpu.py", "--device", "cpu", "--out", tmp_path, *sizes]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["failed"] for row in report["rows"] if "failed" in row] == ["nothing is at a GPU"]
    assert {"hash of 1 MiB at the GPU", "tensors at the GPU against copies by hand"} <= {row["what"] for row in report["figures"]}


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory):
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize(
    ("kernels", "words", "of_library"),
    [
        ("tests/fakes/cuda/module.txt", "yes", "kernels in the library"),
        ("README.md", "in the library, but the GPU refuses them: cuModuleLoadData: error 200", "kernels in the library"),
        ("nothing", "cannot be read", "cannot be read"),
        ("off", "no: PCCL_CUDA_KERNELS=off", "no kernels: PCCL_CUDA_KERNELS=off"),
    ],
)
def test_kernels(fake_driver, kernels, words, of_library):
    environment = driver_environment(fake_driver, Path("off") if kernels == "off" else ROOT / kernels)
    command = "import pccl, pccl.cli.info; print(pccl.cuda.describe()); print(pccl.cli.info._facts()['CUDA kernels'])"
    done = subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    described, fact = done.stdout.splitlines()
    assert described.startswith("fake GPU, fake GPU; ")
    assert of_library in described
    assert words in fact


def test_jobs_of_the_benchmark(monkeypatch):
    """They have the members of those in C, in the same order."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    jobs = importlib.import_module("gpu_kernels")
    header = (ROOT / "cuda/kernels/kernel.h").read_text()
    for name, job in (("hash_leaves_job", jobs.HashLeavesJob), ("codes_job", jobs.CodesJob)):
        body = re.sub(r"//[^\n]*", "", re.search(rf"struct {name} \{{(.*?)\}};", header, re.DOTALL)[1])
        members = [re.sub(r"\[.*\]", "", part).split()[-1].strip("*") for part in re.findall(r"[^;,]+(?=[;,])", body)]
        assert members == [field[0] for field in job._fields_]


def test_availability():
    count = pccl.cuda.device_count()
    assert pccl.cuda.is_available() is (count > 0) is pccl.cuda.is_cuda_available
    assert pccl.cuda.describe()
