"""Enumerations: the values of the contract (2.2, 3.2) and the conversions of data types."""

import numpy as np
import pytest

import pccl
from pccl import DataType, DeviceType, Result

VALUES = {
    pccl.ReduceOp: {"SUM": 0, "AVG": 1, "PROD": 2, "MAX": 3, "MIN": 4, "BAND": 5, "BOR": 6, "BXOR": 7},
    pccl.Attribute: {
        "GLOBAL_WORLD_SIZE": 1,
        "LOCAL_WORLD_SIZE": 2,
        "NUM_DISTINCT_PEER_GROUPS": 3,
        "LARGEST_PEER_GROUP_WORLD_SIZE": 4,
    },
    pccl.SharedStateSyncStrategy: {"ENFORCE_POPULAR": 0, "RECEIVE_ONLY": 1, "SEND_ONLY": 2},
    pccl.DistributionHint: {"NONE": 0, "NORMAL": 1, "UNIFORM": 2},
    pccl.QuantizationAlgorithm: {
        "NONE": 0,
        "MIN_MAX": 1,
        "ZERO_POINT_SCALE": 2,
        "BLOCK_INT8": 3,
        "BLOCK_INT4": 4,
        "BLOCK_E3M0": 5,
    },
    pccl.DeviceType: {"CPU": 0, "CUDA": 1},
    pccl.DataType: {
        "UINT8": 0,
        "INT8": 1,
        "INT16": 2,
        "UINT16": 3,
        "UINT32": 4,
        "INT32": 5,
        "UINT64": 6,
        "INT64": 7,
        "FLOAT16": 8,
        "BFLOAT16": 9,
        "FLOAT": 10,
        "DOUBLE": 11,
        "BOOL": 12,
    },
    pccl.Result: {
        "SUCCESS": 0,
        "NOT_INITIALIZED": 1,
        "INTERNAL_ERROR": 2,
        "INVALID_ARGUMENT": 3,
        "INVALID_USAGE": 4,
        "TOO_FEW_PEERS": 5,
        "MASTER_CONNECTION_FAILED": 6,
        "RANK_CONNECTION_FAILED": 7,
        "RANK_CONNECTION_LOST": 8,
        "NO_SHARED_STATE_AVAILABLE": 9,
        "PENDING_ASYNC_OPS": 10,
        "UPDATE_TOPOLOGY_FAILED": 11,
        "TOPOLOGY_OPTIMIZATION_FAILED": 12,
        "TIMED_OUT": 13,
        "CANCELLED": 14,
        "LEFT": 15,
        "STATE_DIFFERS": 16,
        "STATE_LOST": 17,
    },
}

NAMES = {
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "INT32": "int32",
    "UINT64": "uint64",
    "INT64": "int64",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "BOOL": "bool",
}


@pytest.mark.parametrize("enum", VALUES, ids=lambda enum: enum.__name__)
def test_values(enum):
    assert {member.name: member.value for member in enum} == VALUES[enum]


@pytest.mark.parametrize("member", DataType)
def test_torch_dtypes_go_both_ways(member):
    torch = pytest.importorskip("torch")
    assert member.to_torch_dtype() is getattr(torch, NAMES[member.name])
    assert DataType.from_torch_dtype(member.to_torch_dtype()) is member
    assert member.itemsize == member.to_torch_dtype().itemsize


@pytest.mark.parametrize("member", DataType)
def test_numpy_dtypes_go_both_ways(member):
    pytest.importorskip("numpy")
    if member is DataType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    assert member.to_numpy_dtype().name == NAMES[member.name]
    assert DataType.from_numpy_dtype(member.to_numpy_dtype()) is member
    assert DataType.from_numpy_dtype(member.to_numpy_dtype().type) is member


@pytest.mark.parametrize("name", ["complex64", "float8_e5m2", "qint8"])
def test_unknown_torch_dtype(name):
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=f"{name}.*float32"):
        DataType.from_torch_dtype(getattr(torch, name))


@pytest.mark.parametrize("name", ["complex64", "S4", "M8[s]", "float128"])
def test_unknown_numpy_dtype(name):
    np = pytest.importorskip("numpy")
    with pytest.raises(AssertionError, match="not supported"):
        DataType.from_numpy_dtype(np.dtype(name))


def test_foreign_byte_order():
    np = pytest.importorskip("numpy")
    with pytest.raises(ValueError, match="byte order"):
        DataType.from_numpy_dtype(np.dtype(">f4"))


@pytest.mark.parametrize(("text", "member"), [("cpu", DeviceType.CPU), ("cuda", DeviceType.CUDA), ("mps", None), ("", None)])
def test_device_type(text, member):
    assert DeviceType.from_torch_device_type(text) is member


def test_every_result_has_a_meaning():
    from pccl._core.errors import error_for

    for member in Result:
        assert error_for(member.value, "f").result is member


@pytest.mark.parametrize("op", list(pccl.ReduceOp))
def test_an_op_by_its_name(op):
    assert pccl.ReduceOp.of(op) is pccl.ReduceOp.of(op.name) is pccl.ReduceOp.of(op.name.lower()) is op


def test_a_wrong_op():
    with pytest.raises(ValueError, match=r"one of sum, avg.*not 'mean'"):
        pccl.ReduceOp.of("mean")
    with pytest.raises(TypeError, match="not int"):
        pccl.ReduceOp.of(0)
    comm = pccl.Communicator("127.0.0.1:1")
    with pytest.raises(ValueError, match="not 'mean'"):
        comm.all_reduce(np.ones(3), op="mean")
    with pytest.raises(ValueError, match="contradict"):
        comm.all_reduce(np.ones(3), retry=True, survivors=False)
    with pytest.raises(pccl.UsageError, match="not connected"):
        comm.all_reduce(np.ones(3), survivors=True)
