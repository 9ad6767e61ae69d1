"""The checks of all_reduce on its tensors, with and without `python -O`."""

import subprocess
import sys

import pytest

import pccl
from pccl import DataType, ReduceOp

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


@pytest.fixture
def comm():
    with pccl.Communicator("127.0.0.1:1") as made:
        yield made


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def frozen():
    array = ones(4)
    array.flags.writeable = False
    return array


def freed():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


BAD_NUMPY = [
    ("strided send", ones(4, 4)[:, 1], ones(4), AssertionError, "send must be contiguous"),
    ("strided recv", ones(4), ones(8)[::2], AssertionError, "recv must be contiguous"),
    ("transposed", ones(2, 3).T, ones(3, 2), AssertionError, "send must be contiguous"),
    ("dtypes", ones(4), ones(4, dtype=np.float64), AssertionError, "FLOAT and recv DOUBLE"),
    ("sizes", ones(4), ones(5), AssertionError, "4 elements and recv 5"),
    ("unknown dtype", ones(4, dtype=np.complex64), ones(4, dtype=np.complex64), AssertionError, "complex64"),
    ("byte order", ones(4, dtype=">f4"), ones(4, dtype=">f4"), ValueError, "byte order"),
    ("read-only recv", ones(4), frozen(), ValueError, "read-only"),
    ("a list", [1.0], [1.0], ValueError, "list and list"),
    ("mixed", ones(4), torch.ones(4), ValueError, "ndarray and Tensor"),
    ("none", None, None, ValueError, "NoneType"),
]

BAD_TORCH = [
    ("strided send", torch.ones(4, 4)[:, 1], torch.ones(4), AssertionError, "send must be contiguous"),
    ("strided recv", torch.ones(4), torch.ones(8)[::2], AssertionError, "recv must be contiguous"),
    ("sparse", torch.ones(4).to_sparse(), torch.ones(4), AssertionError, r"send is sparse; call \.to_dense\(\)"),
    ("sparse recv", torch.ones(4), torch.ones(4).to_sparse(), AssertionError, r"recv is sparse; call \.to_dense\(\)"),
    ("freed", freed(), torch.ones(4), AssertionError, "send has no memory"),
    ("dtypes", torch.ones(4), torch.ones(4).double(), AssertionError, "FLOAT and recv DOUBLE"),
    ("sizes", torch.ones(4), torch.ones(5), AssertionError, "4 elements and recv 5"),
    ("unknown dtype", torch.ones(4) * 1j, torch.ones(4) * 1j, ValueError, "torch.complex64"),
    ("devices", torch.ones(4), torch.ones(4, device="meta"), AssertionError, "one device"),
    ("device", torch.ones(4, device="meta"), torch.ones(4, device="meta"), AssertionError, "pass a CPU or CUDA tensor"),
]


@pytest.mark.parametrize(("send", "recv", "kind", "words"), [row[1:] for row in BAD_NUMPY], ids=[row[0] for row in BAD_NUMPY])
@pytest.mark.parametrize("method", ["all_reduce", "all_reduce_async"])
def test_bad_arrays(comm, method, send, recv, kind, words):
    with pytest.raises(kind, match=words):
        getattr(comm, method)(send, recv, op=ReduceOp.SUM)


@pytest.mark.parametrize(("send", "recv", "kind", "words"), [row[1:] for row in BAD_TORCH], ids=[row[0] for row in BAD_TORCH])
@pytest.mark.parametrize("method", ["all_reduce", "all_reduce_async"])
def test_bad_tensors(comm, method, send, recv, kind, words):
    with pytest.raises(kind, match=words):
        getattr(comm, method)(send, recv, op=ReduceOp.SUM)


@pytest.mark.parametrize("dtype", [kind for kind in DataType if kind is not DataType.BFLOAT16])
def test_good_arrays_get_as_far_as_the_library(comm, dtype):
    send = np.ones(5, dtype.to_numpy_dtype())
    with pytest.raises(pccl.PCCLError) as caught:
        comm.all_reduce(send, np.empty_like(send), op=ReduceOp.SUM)
    assert caught.value.result is pccl.Result.INVALID_USAGE  # not connected


@pytest.mark.parametrize("dtype", DataType)
def test_good_tensors_get_as_far_as_the_library(comm, dtype):
    send = torch.ones(5, dtype=dtype.to_torch_dtype())
    for tensor in (send, torch.nn.Parameter(send, requires_grad=False), send.reshape(5, 1), send[1:]):
        with pytest.raises(pccl.PCCLError) as caught:
            comm.all_reduce(tensor, tensor, op=ReduceOp.SUM)
        assert caught.value.result is pccl.Result.INVALID_USAGE


def test_bad_numbers(comm):
    a = ones(4)
    for tag in (-1, 1 << 64):
        with pytest.raises(ValueError, match="tag"):
            comm.all_reduce(a, a, op=ReduceOp.SUM, tag=tag)
    with pytest.raises(TypeError, match="ReduceOp"):
        comm.all_reduce(a, a, op=0)
    with pytest.raises(ValueError, match="hold 16 bytes"):
        comm.all_reduce(a, a, op=ReduceOp.SUM, operand_descriptor=pccl.ReduceOperandDescriptor(DataType.DOUBLE))
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            comm.all_reduce(a, a, op=ReduceOp.SUM, timeout=timeout)


def test_a_descriptor_that_was_changed_to_reach_beyond_its_tensors(comm):
    operand, data = pccl.ReduceOperandDescriptor(DataType.FLOAT), ones(4)
    described = pccl.ReduceDescriptor(4, ReduceOp.SUM, 1, operand, pccl.QuantizationOptions())
    made = pccl.ReduceOpDescriptor.from_numpy(data, data, described)
    described.count = 5
    for timeout in (None, 1):
        with pytest.raises(ValueError, match="asks for 5 elements"):
            comm.all_reduce_multiple_with_retry([made], timeout=timeout)


def test_bad_parameters_of_a_communicator():
    for name, least, most in (
        ("peer_group", -1, 1 << 32),
        ("p2p_connection_pool_size", -1, 1 << 32),
        ("master_recovery_limit", -0.1, 1e9),
    ):
        for value in (least, most):
            with pytest.raises(ValueError, match=name):
                pccl.Communicator("127.0.0.1:1", **{name: value})
        with pytest.raises(TypeError, match=name):
            pccl.Communicator("127.0.0.1:1", **{name: "1"})


def test_kinds_of_arguments_are_named(comm):
    a = ones(4)
    described = pccl.ReduceDescriptor(
        4, ReduceOp.SUM, 0, pccl.ReduceOperandDescriptor(DataType.FLOAT), pccl.QuantizationOptions()
    )
    for made, words in [
        (lambda: comm.all_reduce(a, a, op=ReduceOp.SUM, tag="1"), "tag must be a whole number, not '1'"),
        (lambda: comm.all_reduce(a, a, op=ReduceOp.SUM, timeout="1"), "timeout must be"),
        (
            lambda: comm.all_reduce(a, a, op=ReduceOp.SUM, operand_descriptor=DataType.FLOAT),
            "a ReduceOperandDescriptor, not DataType",
        ),
        (
            lambda: comm.all_reduce(a, a, op=ReduceOp.SUM, quantization_options=pccl.QuantizationAlgorithm.MIN_MAX),
            "a QuantizationOptions, not QuantizationAlgorithm",
        ),
        (lambda: comm.all_reduce_multiple_with_retry([described]), "a ReduceOpDescriptor, not ReduceDescriptor"),
        (lambda: comm.get_attribute(1), "an Attribute, not int"),
        (lambda: comm.connect("5"), "n_attempts must be a whole number, not '5'"),
        (lambda: comm.group([0, 1]), "members must be UUIDs, such as those of Communicator.members, not 0"),
        (lambda: pccl.Communicator("127.0.0.1:1", keys=5), "keys must be the path of a file, not 5"),
        (lambda: pccl.Communicator("127.0.0.1:1", events=True), "events must be the path of a file, or False"),
        (lambda: pccl.QuantizationOptions(np.uint8), "quantized_datatype must be a DataType, not type"),
        (lambda: pccl.ReduceOpDescriptor.from_torch(a, a, described), "send must be a torch.Tensor, not ndarray"),
        (lambda: pccl.ReduceOpDescriptor.from_numpy([1.0], [1.0], described), "send must be a numpy.ndarray, not list"),
    ]:
        with pytest.raises(TypeError, match=words):
            made()


def test_checks_do_not_vanish_when_optimised():
    code = (
        "import numpy as np, pccl\n"
        "comm = pccl.Communicator('127.0.0.1:1')\n"
        "def refused(call, kind):\n"
        "    try: call()\n"
        "    except kind: return\n"
        "    raise SystemExit(f'{kind} did not come')\n"
        "a = np.ones((4, 4), np.float32)\n"
        "reduce = lambda s, r: comm.all_reduce(s, r, op=pccl.ReduceOp.SUM)\n"
        "refused(lambda: reduce(a[:, 0], a[:, 1]), AssertionError)\n"
        "refused(lambda: reduce(a, a[0]), AssertionError)\n"
        "refused(lambda: reduce(a, a.astype('f8')), AssertionError)\n"
        "refused(lambda: pccl.SharedState([]), AssertionError)\n"
        "refused(lambda: pccl.Communicator('nothing'), AssertionError)\n"
        "refused(lambda: pccl.TensorInfo.from_numpy(a.T, 'a'), AssertionError)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
