"""Members whose tensors lie at a GPU of the fake driver (tests/fakes/cuda), as processes that are told what to do."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from performers import PATIENCE, preload

import pccl
from pccl import (
    Communicator,
    DataType,
    DeviceType,
    ErrorFeedback,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceOp,
    UsageError,
)
from pccl._core.gpu import hold_stream

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ILLEGAL_ADDRESS = 700

preload(__name__)


def build_driver(folder: Path) -> Path:
    """The fake driver, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = folder / "libfake_cuda.so"
    flags = ["-std=c11", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    folders = [f"-I{ROOT}", f"-I{ROOT}/csrc", f"-I{ROOT}/csrc/include", f"-o{made}"]
    subprocess.run([compiler, *flags, *folders, *(ROOT / "tests" / "fakes" / "cuda").glob("[dkm]*.c")], check=True)
    return made


def driver_environment(
    driver: Path, kernels: Path = ROOT / "tests" / "fakes" / "cuda" / "module.txt", reduce: str = "gpu", library: str = ""
) -> dict[str, str]:
    """What lets a process use the fake driver, and its kernels whether nvcc has been there or not.

    `library` takes the place of libpccl_cuda.so.
    """
    named = {"PCCL_CUDA_DRIVER": str(driver), "PCCL_CUDA_KERNELS": str(kernels), "PCCL_CUDA_REDUCE": reduce}
    return {**named, "PCCL_CUDA_LIBRARY": library}


class Counts(ctypes.Structure):
    """`struct fake_cuda_counts`."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("streams", "events", "host_blocks", "device_blocks", "pending", "misuses", "risks")),
        ("calls", ctypes.c_uint),
        ("copies", ctypes.c_uint),
        ("launches", ctypes.c_uint),
        ("copied", ctypes.c_size_t),
    ]


class Driver:
    """What a program would do with CUDA."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        for name in ("fake_cuda_new", "fake_cuda_bytes", "fake_cuda_stream"):
            getattr(self.library, name).restype = ctypes.c_void_p
        self._kernels: list[Any] = []

    def stream(self, gpu: int = 0) -> int:
        return int(self.library.fake_cuda_stream(gpu))

    def risks(self) -> tuple[int, int]:
        """Calls that may wait for the whole GPU while a stream waited for an op, and calls that CUDA forbids."""
        counts = self.counts()
        return counts.risks, counts.misuses

    def counts(self) -> Counts:
        counts = Counts()
        self.library.fake_cuda_counts_into(ctypes.byref(counts))
        return counts

    def hold(self, hold: bool) -> None:
        """Whether the GPUs of this process pause."""
        self.library.fake_cuda_hold(hold)

    def capture(self, stream: int) -> None:
        self.library.fake_cuda_capture(ctypes.c_void_p(stream))

    def capture_end(self, stream: int) -> bool:
        return bool(self.library.fake_cuda_capture_end(ctypes.c_void_p(stream)))

    def launch(self, stream: int, microseconds: int, kernel: Callable[[], None]) -> None:
        self._kernels.append(KERNEL(lambda _: kernel()))
        self.library.fake_cuda_launch(0, ctypes.c_void_p(stream), microseconds, self._kernels[-1], None)

    def synchronize(self, stream: int) -> None:
        self.library.fake_cuda_synchronize(ctypes.c_void_p(stream))


class Array:
    """An array at a GPU, as those of CuPy are. `bytes` is where a test finds its elements."""

    def __init__(self, driver: Driver, content: np.ndarray[Any, Any], stream: int = 0, gpu: int = 0) -> None:
        self._content = content
        self._address = int(driver.library.fake_cuda_new(gpu, ctypes.c_size_t(content.nbytes)))
        address = driver.library.fake_cuda_bytes(ctypes.c_void_p(self._address))
        raw = (ctypes.c_uint8 * content.nbytes).from_address(address)
        self.elements = np.frombuffer(raw, content.dtype)
        self.elements[:] = content
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        content = self._content
        described = {"shape": content.shape, "typestr": content.dtype.str, "strides": None, "version": 3}
        return {**described, "data": (self._address, False), "stream": self.stream or None}

    def part(self, begin: int, end: int) -> Any:
        """Of its elements."""
        made = object.__new__(Array)
        made._content, made.stream = self._content[begin:end], self.stream
        made._address, made.elements = self._address + begin * self._content.itemsize, self.elements[begin:end]
        return made


class Member:
    """One of two."""

    def __init__(self, pipe: Connection, address: str, library: str, at_gpu: bool) -> None:
        self.log = None
        self.driver = Driver(library)
        self.at_gpu = at_gpu
        self.comm = Communicator(address, p2p_connection_pool_size=2)

    def join(self) -> int:
        self.comm.connect()
        self.comm.wait_for_peers(2, timeout=PATIENCE)
        return self.comm.rank

    def _array(self, content: np.ndarray[Any, Any], stream: int = 0) -> Any:
        return Array(self.driver, content, stream) if self.at_gpu else content.copy()

    def _elements(self, array: Any) -> np.ndarray[Any, Any]:
        elements: np.ndarray[Any, Any] = array.elements if isinstance(array, Array) else array
        return elements

    def _halves(self, array: Any, count: int) -> list[Any]:
        return [array.part(0, count), array.part(count, 2 * count)] if self.at_gpu else [array[:count], array[count:]]

    def reduce(self, count: int, dtype: str, in_place: bool, algorithm: str | None, retry: bool) -> bytes:
        """The result of an average."""
        content = (np.arange(count) % 251 * (self.comm.rank + 1)).astype(dtype)
        send = self._array(content)
        recv = send if in_place else self._array(np.zeros(count, dtype))
        quantised = algorithm and QuantizationOptions(DataType.UINT8, QuantizationAlgorithm[algorithm])
        self.comm.all_reduce(send, recv, op=ReduceOp.SUM, tag=7, quantization_options=quantised or None, retry=retry)
        if not in_place:
            assert (self._elements(send) == content).all()
        return self._elements(recv).tobytes()

    def reduce_while_the_gpu_pauses(self, count: int, algorithm: str | None, seconds: float) -> tuple[str, bytes]:
        """What has become of a sum during which the GPU of this member does nothing for so long, and the result."""
        send = self._array((np.arange(count) % 251 * (self.comm.rank + 1)).astype(np.float32))
        recv = self._array(np.zeros(count, np.float32))
        quantised = algorithm and QuantizationOptions(DataType.UINT8, QuantizationAlgorithm[algorithm])
        self.driver.hold(self.at_gpu)
        handle = self.comm.all_reduce_async(send, recv, op=ReduceOp.SUM, tag=7, quantization_options=quantised or None)
        if self.at_gpu:
            time.sleep(seconds)
            self.driver.hold(False)
        try:
            handle.result()
        except PCCLError as error:
            return error.result.name, b""
        return "SUCCESS", self._elements(recv).tobytes()

    def launches(self) -> int:
        """Of kernels of the library, so far."""
        return int(self.driver.counts().launches)

    def reduce_many(self, count: int) -> bytes:
        """All named ways that move pieces: broadcast, all-gather, all-to-all, send and receive."""
        rank = self.comm.rank
        own = self._array(np.full(count, rank + 1, np.int32))
        both = self._array(np.zeros(2 * count, np.int32))
        self.comm.all_gather(own, both)
        turned = self._array(np.zeros(2 * count, np.int32))
        self.comm.all_to_all(self._halves(both, count), self._halves(turned, count))
        self.comm.broadcast(own, root=1)
        scattered = self._array(np.zeros(count, np.int32))
        self.comm.reduce_scatter(both, scattered, op=ReduceOp.SUM)
        for survivors in (True, False):
            handle = self.comm.broadcast_async(both, root=0, survivors=survivors)
            if self.at_gpu:
                handle.wait_stream()
            handle.wait()
        if rank == 0:
            self.comm.send(turned, to=1)
        else:
            self.comm.recv(turned, source=0)
        every = [self._elements(array) for array in (both, turned, own)]
        assert (self._elements(scattered) == 2 * (rank + 1)).all()
        return b"".join(array.tobytes() for array in every)

    def reduce_in_order(self, count: int) -> list[float]:
        """A slow kernel writes the input on the stream before the launch; one behind `wait_stream` finds the result."""
        stream = self.driver.stream()
        array = Array(self.driver, np.zeros(count, np.float32), stream)
        found: list[float] = []

        def write() -> None:
            array.elements[:] = self.comm_rank + 1

        def read() -> None:
            found.extend((float(array.elements.min()), float(array.elements.max())))

        self.comm_rank = self.comm.rank
        self.driver.launch(stream, 30_000, write)
        handle = self.comm.all_reduce_async(array, op=ReduceOp.SUM)
        handle.wait_stream()
        self.driver.launch(stream, 0, read)
        other = self.driver.stream()
        handle.wait_stream(other)
        self.driver.synchronize(other)
        self.driver.synchronize(stream)
        assert handle.wait()[0]
        handle.wait_stream()  # of an op that has ended: nothing to wait for
        return found

    def reduce_while_a_stream_waits(self, gpu: int, count: int, large: int) -> tuple[list[float], tuple[int, int]]:
        """Ops in place, more than there are rooms, one after another on a stream that waits for each; one in retry mode."""
        stream = self.driver.stream(gpu)
        arrays = [Array(self.driver, np.full(size, 1, np.float32), stream, gpu) for size in (*[count] * 5, large)]
        handles = []
        for number, array in enumerate(arrays):
            handles.append(self.comm.all_reduce_async(array, op=ReduceOp.SUM, tag=number, retry=array is arrays[-1]))
            if number != 2:
                handles[-1].wait_stream()
        self.driver.synchronize(stream)
        for handle in handles:
            assert handle.wait()[0]
        return [float(array.elements.sum(dtype=np.float64)) / len(array.elements) for array in arrays], self.driver.risks()

    def wait_in_two_threads(self, count: int, rounds: int) -> tuple[int, int]:
        """One waits on the host, the other lets a stream wait until the op has ended."""
        stream = self.driver.stream()
        array = Array(self.driver, np.zeros(count, np.float32), stream)
        for number in range(rounds):
            handle = self.comm.all_reduce_async(array, op=ReduceOp.SUM, tag=number)
            waiter = threading.Thread(target=handle.wait)
            waiter.start()
            for _ in range(20):
                handle.wait_stream()
            waiter.join()
        hold_stream(self.comm._handle, rounds, stream, 0, "wait_stream")  # as of one that was awaited since it was looked at
        self.driver.synchronize(stream)
        return self.driver.risks()

    def reduce_when_refused(self, count: int) -> list[str]:
        """Streams that cannot be followed or cannot wait: each call is refused, and the same op goes on with another stream."""
        capturing, stream, far = self.driver.stream(), self.driver.stream(), self.driver.stream(1)
        self.driver.capture(capturing)
        refusals = []
        for bad in (capturing, far):
            array = Array(self.driver, np.ones(count, np.float32), bad)
            for call in (self.comm.all_reduce_async, self.comm.all_reduce):
                try:
                    call(array, op=ReduceOp.SUM, tag=3)
                except UsageError as error:
                    refusals.append(error.detail)
        array = Array(self.driver, np.ones(count, np.float32), stream)
        handle = self.comm.all_reduce_async(array, op=ReduceOp.SUM, tag=3)
        try:
            handle.wait_stream(capturing)
        except UsageError as error:
            refusals.append(error.detail)
        handle.wait()
        assert (array.elements == 2).all()
        assert self.driver.capture_end(capturing)
        assert self.driver.risks() == (0, 0)
        return refusals

    def refusals_without_the_library(self) -> str:
        """What the calls say that refuse a tensor on a GPU: all the same. A sum on the CPU works before and after."""
        content = np.ones(100, np.float32)
        array = Array(self.driver, content)
        entry = pccl.TensorInfo(
            "w", array._address, numel=100, dtype=DataType.FLOAT, device_type=DeviceType.CUDA, allow_content_inequality=False
        )
        strategy = pccl.SharedStateSyncStrategy.ENFORCE_POPULAR
        calls = (
            lambda: self.comm.all_reduce(array, op=ReduceOp.SUM, tag=1),
            lambda: self.comm.all_reduce_async(array, op=ReduceOp.SUM, tag=2),
            lambda: self.comm.broadcast(array, root=0),
            lambda: self.comm.sync_shared_state(pccl.SharedState([entry]), strategy),
        )
        refusals = set()
        for call in calls:
            on_cpu = content.copy()
            self.comm.all_reduce(on_cpu, op=ReduceOp.SUM, tag=3)
            assert (on_cpu == 2).all()
            try:
                call()
            except UsageError as error:
                refusals.add(error.detail)
        (refusal,) = refusals
        return refusal

    def reduce_with_bad_stream(self, count: int) -> tuple[str, bool]:
        """A copy fails under an op in place whose stream cannot be followed any more: the input is put back all the same."""
        before = self.driver.counts().copies
        self.comm.all_reduce(Array(self.driver, np.ones(count, np.float32)), op=ReduceOp.SUM)
        copies = self.driver.counts().copies - before
        stream = self.driver.stream()
        content = np.arange(1, count + 1, dtype=np.float32)
        array = Array(self.driver, content, stream)
        handle = self.comm.all_reduce_async(array, op=ReduceOp.SUM)
        self.driver.synchronize(stream)
        self.driver.capture(stream)
        self.driver.library.fake_cuda_fail_copy(copies * 3 // 4)  # part of the result has been written
        try:
            handle.result()
        except PCCLError as error:
            return error.detail, bool((array.elements == content).all())
        return "", False

    def feed_back(self, count: int) -> str:
        """Error feedback is at the device of the tensors: here it is not."""
        residual = ErrorFeedback(np.zeros(count, np.float32))
        quantised = QuantizationOptions(DataType.UINT8, QuantizationAlgorithm.BLOCK_INT8)
        array = Array(self.driver, np.zeros(count, np.float32))
        try:
            self.comm.all_reduce(array, op=ReduceOp.SUM, quantization_options=quantised, residual=residual)
        except ValueError as error:
            return str(error)
        return ""

    def sync(self, count: int) -> tuple[str, bytes]:
        """Of a state that differs in some leaves, after which the kernel on the default stream that changes it has run."""
        return self._sync(count, sends=self.comm.rank == 0)

    def sync_while_the_gpu_pauses(self, count: int, seconds: float) -> tuple[str, bytes]:
        """The same, but the GPU of the donor does nothing for so long after it has hashed the state."""
        if not self.at_gpu:
            return self._sync(count, sends=False)
        launches = self.launches()

        def pause() -> None:
            while self.launches() == launches:
                time.sleep(0)
            self.driver.hold(True)
            time.sleep(seconds)
            self.driver.hold(False)

        with ThreadPoolExecutor(1) as pool:
            pausing = pool.submit(pause)
            synchronised = self._sync(count, sends=True)
            pausing.result()
        return synchronised

    def _sync(self, count: int, *, sends: bool) -> tuple[str, bytes]:
        content = np.arange(count, dtype=np.float64)
        content[:: 1 + count // 3] += self.comm.rank
        array = self._array(content)
        device = DeviceType.CUDA if self.at_gpu else DeviceType.CPU
        address = array._address if self.at_gpu else array.ctypes.data
        entry = pccl.TensorInfo(
            "weights", address, numel=count, dtype=DataType.DOUBLE, device_type=device, allow_content_inequality=False
        )
        state = pccl.SharedState([entry])
        strategy = pccl.SharedStateSyncStrategy
        self.comm.sync_shared_state(state, strategy.SEND_ONLY if sends else strategy.RECEIVE_ONLY)
        return state.hash(), self._elements(array).tobytes()

    def reduce_when_it_fails(self, count: int, broken: bool) -> tuple[str, str]:
        """One GPU fails under an op: the error, with the driver's words, and the other's loss."""
        array = self._array(np.ones(count, np.float32))
        if broken:
            self.driver.launch(0, 5_000, lambda: self.driver.library.fake_cuda_break(ILLEGAL_ADDRESS))
        try:
            self.comm.all_reduce(array, op=ReduceOp.SUM)
        except PCCLError as error:
            return error.result.name, error.detail
        return "SUCCESS", ""
