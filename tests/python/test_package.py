"""The names, signatures and imports of the package (contract 3.1, 3.2)."""

import importlib
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pccl
import pccl._pccl
import pccl.master

STARRED = [
    "cuda",
    "Communicator",
    "MasterNode",
    "ReduceOp",
    "Attribute",
    "SharedStateSyncStrategy",
    "DataType",
    "DistributionHint",
    "QuantizationAlgorithm",
    "ReduceOperandDescriptor",
    "QuantizationOptions",
    "ReduceDescriptor",
    "TensorInfo",
    "SharedState",
    "SharedStateSyncInfo",
    "ReduceInfo",
    "ReduceOpDescriptor",
    "AsyncReduceHandle",
    "PCCLError",
]


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_exports():
    assert sorted(pccl.__all__) == sorted(STARRED)
    for name in [*STARRED, "Result", "DeviceType"]:
        assert hasattr(pccl, name), name
        if name != "cuda":
            assert getattr(pccl._pccl, name) is getattr(pccl, name), name
    assert pccl._pccl.ffi.NULL is not None
    assert pccl._pccl.C.pcclSuccess == 0


def public(package) -> dict[str, object]:
    return {name: value for name, value in vars(package).items() if not name.startswith("_") and not inspect.ismodule(value)}


def test_public_names_are_at_home_in_their_package():
    for name, value in public(pccl).items():
        assert value.__module__ == "pccl", name
        assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("package", ["pccl.diloco", "pccl.distributed", "pccl.state"])
def test_names_for_torch_are_at_home_in_their_package(package):
    pytest.importorskip("torch")
    module = importlib.import_module(package)
    for name in module.__all__:
        if inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value):
            assert value.__module__ == package or getattr(pccl, name) is value, name


def test_help_lists_all_that_is_public():
    text = pydoc.plain(pydoc.render_doc(pccl))
    for name in public(pccl):
        assert re.search(rf"\b{name}\b", text), name


def test_tracebacks_have_public_names():
    done = run_python("import pccl; pccl.Communicator('127.0.0.1:1').update_topology()")
    assert done.stderr.splitlines()[-1].startswith("pccl.UsageError: update_topology: ")


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert re.fullmatch(r"\d+\.\d+\.\d+", pccl.__version__)
    assert pccl.__version__ == version("pccl")


def test_cuda_module(monkeypatch):
    import pccl._cuda

    assert pccl.cuda is pccl._cuda
    assert pccl.cuda.is_available() is pccl.cuda.is_cuda_available
    monkeypatch.setattr(pccl.cuda, "is_cuda_available", True)
    assert pccl.cuda.is_available() is True


def test_cuda_is_imported_like_any_module():
    code = "import pccl.cuda; from pccl.cuda import is_available; assert pccl.cuda is pccl._cuda and not is_available()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_demo_is_a_module_that_runs():
    done = subprocess.run([sys.executable, "-m", "pccl.demo", "--help"], capture_output=True, text=True, check=True)
    assert "killed with SIGKILL" in " ".join(done.stdout.split())


def test_is_typed():
    assert (Path(pccl.__file__).parent / "py.typed").exists()


def test_import_needs_neither_torch_nor_numpy_nor_the_command_lines_libraries():
    hidden = "torch", "numpy", "click", "rich", "ml_dtypes"
    code = (
        "import sys\n"
        f"for name in {hidden!r}: sys.modules[name] = None\n"
        "import pccl, pccl.master\n"
        "comm = pccl.Communicator('127.0.0.1:1')\n"
        "print(comm)\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kept", ["numpy", "torch"])
def test_import_loads_neither(kept):
    done = run_python(f"import sys, pccl; print({kept!r} in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_each_works_without_the_other():
    numpy_alone = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, pccl\n"
        "a = np.ones(3, np.float32)\n"
        "pccl.SharedState([pccl.TensorInfo.from_numpy(a, 'a')])\n"
        "assert pccl.DataType.FLOAT.to_numpy_dtype() == a.dtype\n"
    )
    done = run_python(numpy_alone)
    assert done.returncode == 0, done.stderr


def parameters(function) -> str:
    """As `a, b=1, *, c=2`, without annotations."""
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return str(inspect.Signature(plain))


@pytest.mark.parametrize("package", ["pccl.diloco", "pccl.distributed", "pccl.state"])
def test_packages_for_torch_say_what_to_install(package):
    done = run_python(f"import sys; sys.modules['torch'] = None; import {package}")
    assert f"{package} needs torch: pip install 'pccl[torch]'" in done.stderr.splitlines()[-1]


C = pccl.Communicator
SIGNATURES = [
    (pccl.PCCLError.check, "(result, func_name)"),
    (C, "(address, peer_group=0, p2p_connection_pool_size=0, *, master_recovery_limit=None, name=None)"),
    (C.connect, "(n_attempts=5, *, timeout=None, begin=None, wait_for_master=None)"),
    (C.get_attribute, "(attribute)"),
    (C.update_topology, "(*, timeout=None)"),
    (C.are_peers_pending, "(*, timeout=None)"),
    (C.optimize_topology, "(*, timeout=None)"),
    (
        C.sync_shared_state,
        "(shared_state, strategy=<SharedStateSyncStrategy.ENFORCE_POPULAR: 0>, *, progress=None, timeout=None)",
    ),
    (
        C.all_reduce,
        "(send, recv=None, *, op=<ReduceOp.SUM: 0>, tag=0, operand_descriptor=None, quantization_options=None, retry=False, "
        "residual=None, survivors=None, group=None, timeout=None)",
    ),
    (
        C.all_reduce_async,
        "(send, recv=None, *, op=<ReduceOp.SUM: 0>, tag=0, operand_descriptor=None, quantization_options=None, retry=False, "
        "residual=None, survivors=None, copy=True)",
    ),
    (C.all_reduce_multiple_with_retry, "(descriptors, *, max_in_flight=4, timeout=None)"),
    (C.wait_for_peers, "(peers, *, timeout=None)"),
    (pccl.MasterNode, "(listen_address, *, heartbeat_limit=None, masters=None, advertise=None, until_empty=None)"),
    (pccl.MasterNode.run, "()"),
    (pccl.MasterNode.interrupt, "()"),
    (pccl.AsyncReduceHandle.wait, "(*, timeout=None)"),
    (pccl.AsyncReduceHandle.result, "(timeout=None)"),
    (pccl.AsyncReduceHandle.done, "()"),
    (pccl.ReduceOperandDescriptor, "(datatype, distribution_hint=<DistributionHint.NONE: 0>)"),
    (
        pccl.QuantizationOptions,
        "(quantized_datatype=<DataType.UINT8: 0>, algorithm=<QuantizationAlgorithm.MIN_MAX: 1>, block=256, stochastic_seed=None)",
    ),
    (pccl.ReduceDescriptor, "(count, op, tag, operand_descriptor, quantization_options)"),
    (pccl.ReduceOpDescriptor, "(sendbuf_ptr, recvbuf_ptr, reduce_descriptor)"),
    (pccl.ReduceOpDescriptor.from_torch, "(send, recv, reduce_descriptor)"),
    (pccl.ReduceOpDescriptor.from_numpy, "(send, recv, reduce_descriptor)"),
    (pccl.ReduceOpDescriptor.to_c_inpl, "(c_desc)"),
    (pccl.TensorInfo, "(name, data_ptr, *, numel, dtype, device_type, allow_content_inequality)"),
    (pccl.TensorInfo.from_torch, "(tensor, name, *, allow_content_inequality=False)"),
    (pccl.TensorInfo.from_numpy, "(tensor, name, *, allow_content_inequality=False)"),
    (pccl.SharedState, "(tensor_infos)"),
    (
        pccl.SharedStateSyncInfo,
        "(tx_bytes, rx_bytes, leaves=0, donors=0, seconds=0.0, hash_seconds=0.0, transfer_seconds=0.0, wire_bytes=0)",
    ),
    (pccl.ReduceInfo, "(local_world_size, tx_bytes, rx_bytes, *, contributors=())"),
]


@pytest.mark.parametrize(("function", "expected"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_signature(function, expected):
    assert parameters(function) == expected
