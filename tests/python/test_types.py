"""Descriptors, shared state and infos."""

import contextlib
import gc
import sys
import weakref

import pytest

import pccl
from pccl import (
    DataType,
    DeviceType,
    DistributionHint,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    TensorInfo,
)
from pccl._pccl import ffi

np = pytest.importorskip("numpy")


def reduce_descriptor(count=3, datatype=DataType.FLOAT):
    return ReduceDescriptor(
        count=count,
        op=ReduceOp.AVG,
        tag=(1 << 64) - 1,
        operand_descriptor=ReduceOperandDescriptor(datatype, DistributionHint.NORMAL),
        quantization_options=QuantizationOptions(),
    )


def test_operand_descriptor():
    made = ReduceOperandDescriptor(DataType.INT16)
    assert (made.datatype, made.distribution_hint) == (DataType.INT16, DistributionHint.NONE)
    c = ReduceOperandDescriptor(DataType.INT16, DistributionHint.UNIFORM).to_c()
    assert (c.datatype, c.distribution_hint) == (2, 2)


def test_quantization_options():
    made = QuantizationOptions()
    assert (made.quantized_datatype, made.algorithm) == (DataType.UINT8, QuantizationAlgorithm.MIN_MAX)
    c = QuantizationOptions(DataType.INT8, QuantizationAlgorithm.ZERO_POINT_SCALE).to_c()
    assert (c.quantized_datatype, c.algorithm) == (1, 2)


def check_c_descriptor(c):
    assert (c.count, c.op, c.tag) == (3, 1, (1 << 64) - 1)
    assert (c.src_descriptor.datatype, c.src_descriptor.distribution_hint) == (10, 1)
    assert (c.quantization_options.quantized_datatype, c.quantization_options.algorithm) == (0, 1)


def test_reduce_descriptor():
    check_c_descriptor(reduce_descriptor().to_c())


def test_reduce_op_descriptor():
    made = ReduceOpDescriptor(0x1000, 0x2000, reduce_descriptor())
    assert (made.sendbuf_ptr, made.recvbuf_ptr) == (0x1000, 0x2000)
    c = made.to_c()
    check_c_descriptor(c.descriptor)
    assert [int(ffi.cast("uintptr_t", pointer)) for pointer in (c.sendbuf, c.recvbuf)] == [0x1000, 0x2000]
    inside = ffi.new("pcclReduceOpDescriptor_t[2]")
    made.to_c_inpl(inside[1])
    check_c_descriptor(inside[1].descriptor)


def test_reduce_op_descriptor_of_arrays():
    send, recv = np.ones(3, np.float32), np.ones(3, np.float32)
    made = ReduceOpDescriptor.from_numpy(send, recv, reduce_descriptor())
    assert (made.sendbuf_ptr, made.recvbuf_ptr) == (send.ctypes.data, recv.ctypes.data)
    with pytest.raises(AssertionError):
        ReduceOpDescriptor.from_numpy(send, recv.astype(np.float64), reduce_descriptor())
    with pytest.raises(ValueError, match="12 bytes"):
        ReduceOpDescriptor.from_numpy(send, recv, reduce_descriptor(count=4))
    with pytest.raises(ValueError, match="12 bytes"):
        ReduceOpDescriptor.from_numpy(send, recv, reduce_descriptor(datatype=DataType.DOUBLE))


def test_reduce_op_descriptor_of_tensors():
    torch = pytest.importorskip("torch")
    send = torch.ones(3)
    made = ReduceOpDescriptor.from_torch(send, send, reduce_descriptor())
    assert made.sendbuf_ptr == made.recvbuf_ptr == send.data_ptr()
    with pytest.raises(AssertionError):
        ReduceOpDescriptor.from_torch(torch.ones(6)[::2], send, reduce_descriptor())


def test_descriptors_keep_arrays_alive():
    class Owner(np.ndarray):  # type: ignore[name-defined]
        pass

    array = np.ones(3, np.float32).view(Owner)
    watch = weakref.ref(array)
    made = ReduceOpDescriptor.from_numpy(array, array, reduce_descriptor())
    state = SharedState([TensorInfo.from_numpy(array, "a")])
    del array
    gc.collect()
    assert watch() is not None
    del made
    gc.collect()
    assert watch() is not None
    del state
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    ("number", "value", "error"),
    [
        ("count", -1, ValueError),
        ("count", 1 << 63, ValueError),
        ("count", 1.5, TypeError),
        ("tag", -1, ValueError),
        ("tag", "1", TypeError),
    ],
)
def test_numbers_of_a_reduce_that_cannot_be(number, value, error):
    numbers = {"count": 1, "tag": 1, number: value}
    with pytest.raises(error, match=f"^{number} must be"):
        ReduceDescriptor(
            op=ReduceOp.SUM,
            operand_descriptor=ReduceOperandDescriptor(DataType.FLOAT),
            quantization_options=QuantizationOptions(),
            **numbers,
        )


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("numel", -1, ValueError), ("numel", 0.5, TypeError), ("dtype", "float", TypeError), ("device_type", "cpu", TypeError)],
)
def test_a_tensor_info_that_cannot_be(name, value, error):
    arguments = {"numel": 2, "dtype": DataType.INT64, "device_type": DeviceType.CPU, name: value}
    with pytest.raises(error, match=f"^{name} must be"):
        TensorInfo("w", 64, allow_content_inequality=True, **arguments)


def test_tensor_info():
    made = TensorInfo("w", 64, numel=2, dtype=DataType.INT64, device_type=DeviceType.CUDA, allow_content_inequality=True)
    assert (made.name, made.data_ptr, made.numel, made.dtype) == ("w", 64, 2, DataType.INT64)
    assert (made.device_type, made.allow_content_inequality) == (DeviceType.CUDA, True)
    with pytest.raises(ValueError, match="w"):
        TensorInfo("w", 0, numel=2, dtype=DataType.INT64, device_type=DeviceType.CPU, allow_content_inequality=True)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_tensor_info_of_any_shape(shape):
    torch = pytest.importorskip("torch")
    for made in (
        TensorInfo.from_numpy(np.ones(shape, np.float16), "w"),
        TensorInfo.from_torch(torch.ones(shape, dtype=torch.float16), "w"),
    ):
        assert (made.numel, made.dtype) == (int(np.prod(shape)), DataType.FLOAT16)
        assert (made.device_type, made.allow_content_inequality) == (DeviceType.CPU, False)


def test_tensor_info_refuses():
    torch = pytest.importorskip("torch")
    with pytest.raises(AssertionError, match="'w' must be contiguous"):
        TensorInfo.from_torch(torch.ones(4, 4).t(), "w")
    with pytest.raises(AssertionError, match="meta"):
        TensorInfo.from_torch(torch.ones(4, device="meta"), "w")
    with pytest.raises(AssertionError, match="'w' must be contiguous"):
        TensorInfo.from_numpy(np.ones((4, 4))[:, 0], "w")


@pytest.mark.parametrize(
    "changed",
    [
        lambda tensor: tensor.view(sys.modules["torch"].bfloat16),
        lambda tensor: tensor.clone(),
        lambda tensor: tensor[:2],
        lambda tensor: tensor.view(2, 2).T,
    ],
)
def test_tensor_info_notices_other_data(changed):
    torch = pytest.importorskip("torch")
    tensor = torch.ones(4, dtype=torch.float16)
    made = pccl.TensorInfo.from_torch(tensor, "w")
    tensor.data = tensor.data.view(2, 2)
    assert made.replaced() is None
    tensor.data = changed(tensor.data.view(4))
    with contextlib.suppress(pccl.ArgumentError):  # it is not contiguous any more
        assert "'w' was replaced" in made.replaced()


def test_tensor_info_refuses_distributed_tensors():
    torch = pytest.importorskip("torch")

    class DTensor(torch.Tensor):  # type: ignore[name-defined]
        pass

    with pytest.raises(AssertionError, match="DTensor"):
        TensorInfo.from_torch(torch.ones(4).as_subclass(DTensor), "w")


def test_shared_state():
    arrays = [np.ones(n, np.float64) for n in (1, 2)]
    state = SharedState([TensorInfo.from_numpy(a, f"größe {i}") for i, a in enumerate(arrays)])
    assert state.revision == 0
    state.push_revision()
    assert state.revision == 1
    state.revision = 41
    state.push_revision()
    assert state.revision == 42
    c = state.to_c()
    assert (c.revision, c.count) == (42, 2)
    assert [ffi.string(c.infos[i].name).decode() for i in range(2)] == ["größe 0", "größe 1"]
    assert [c.infos[i].count for i in range(2)] == [1, 2]
    assert "revision=42" in repr(state)


def test_empty_shared_state():
    with pytest.raises(AssertionError):
        SharedState([])


def test_infos():
    info = pccl.ReduceInfo(local_world_size=3, tx_bytes=4, rx_bytes=5)
    assert (info.local_world_size, info.tx_bytes, info.rx_bytes, info.world_size) == (3, 4, 5, 3)
    with pytest.raises(AttributeError):
        info.world_size = 1
    moved = pccl.SharedStateSyncInfo(tx_bytes=4, rx_bytes=5)
    assert (moved.tx_bytes, moved.rx_bytes) == (4, 5)


@pytest.mark.parametrize("block", [0, 16, 48, 255, 8192])
def test_blocks_are_powers_of_two(block):
    with pytest.raises(ValueError, match=f"power of two from 32 to 4096, not {block}"):
        QuantizationOptions(algorithm=QuantizationAlgorithm.BLOCK_INT4, block=block)


@pytest.mark.parametrize("options", [{"block": 64}, {"stochastic_seed": 0}])
def test_only_quantisation_in_blocks_has_their_options(options):
    with pytest.raises(ValueError, match="MIN_MAX takes no block"):
        QuantizationOptions(**options)
    QuantizationOptions(algorithm=QuantizationAlgorithm.BLOCK_E3M0, **options)


def test_a_seed_is_a_number_of_64_bits():
    with pytest.raises(ValueError, match=r"stochastic_seed must be from 0 to 2\*\*64 - 1"):
        QuantizationOptions(algorithm=QuantizationAlgorithm.BLOCK_INT4, stochastic_seed=-1)
