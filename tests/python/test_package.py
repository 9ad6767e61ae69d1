"""The names, signatures and imports of the package (contract 3.1, 3.2)."""

import importlib
import inspect
import os
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
from pccl._exports import modules_of

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


NAMES = {name: module for name, module in modules_of("pccl").items() if module != "pccl" and name != "__version__"}


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def run_well(code: str) -> str:
    """Runs a program that has to succeed. Returns what it prints."""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exports():
    assert sorted(pccl.__all__) == sorted(STARRED)
    for name in [*STARRED, "Result", "DeviceType"]:
        assert hasattr(pccl, name), name
        if name != "cuda":
            assert getattr(pccl._pccl, name) is getattr(pccl, name), name
    assert pccl._pccl.ffi.NULL is not None
    assert pccl._pccl.C.pcclSuccess == 0


def public(package) -> dict[str, object]:
    named = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    return {name: value for name, value in named.items() if not inspect.ismodule(value)}


def modules_loaded_by(code: str) -> set[str]:
    """Returns what `code` imports beyond what finds this package, in a new interpreter."""
    finders = "import importlib.machinery, importlib.util, pathlib, sys; old = set(sys.modules)\n"
    return set(run_well(f"{finders}{code}\nprint(*set(sys.modules) - old)").split())


# Importing any of these costs as much as importing the master.
COSTLY = {"asyncio", "concurrent.futures", "dataclasses", "hashlib", "inspect", "logging", "platform", "queue", "socket", "uuid"}


def test_import_loads_next_to_nothing():
    assert modules_loaded_by("import pccl") <= {"atexit", "pccl", "pccl._exports", "pccl._version"}
    assert modules_loaded_by("import pccl; dir(pccl); pccl.__version__; hasattr(pccl, 'nothing')") <= {
        "atexit",
        "pccl",
        "pccl._exports",
        "pccl._version",
    }


@pytest.mark.parametrize("code", ["import pccl; pccl.MasterNode('127.0.0.1:0')", "import pccl.master"])
def test_a_master_loads_no_module_of_a_communicator(code):
    modules = modules_loaded_by(code)
    assert "pccl._run.master" in modules
    assert not modules & (COSTLY | {"typing"})
    assert not {name for name in modules if name.startswith("pccl.")} - {
        *("pccl._core", *(f"pccl._core.{name}" for name in ("address", "calls", "enums", "errors", "library", "log"))),
        *("pccl._exports", "pccl._host", "pccl._host.files", "pccl._native", "pccl._native.lib", "pccl._version"),
        *("pccl._run", "pccl._run.credentials", "pccl._run.master", "pccl.master"),
    }


def test_a_communicator_loads_what_it_needs_at_first():
    modules = modules_loaded_by("import pccl; pccl.Communicator('127.0.0.1:1')")
    assert not modules & {"asyncio", "hashlib", "logging", "numpy", "socket", "torch"}


def test_every_public_name_is_there_and_listed():
    assert set(vars(pccl._pccl)) >= {*NAMES, "C", "cuda", "ffi"}
    assert set(NAMES) <= set(public(pccl))
    assert set(pccl.__all__) | set(NAMES) <= set(dir(pccl))
    done = run_python(
        "from pccl import *\nimport pccl\nassert all(globals()[name] is getattr(pccl, name) for name in pccl.__all__)"
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="module 'pccl' has no attribute 'communicator'"):
        _ = pccl.communicator  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", sorted(set(NAMES.values())))
def test_each_module_publishes_its_names(module):
    """Whichever comes first in a process: texts, pickles and type hints have the public names."""
    code = (
        f"import {module} as module, pccl, pickle\n"
        f"for name in {[name for name, home in NAMES.items() if home == module]}:\n"
        "    value = getattr(module, name)\n"
        "    assert vars(pccl)[name] is value and value.__module__ == 'pccl', name\n"
        "    assert pickle.loads(pickle.dumps(value)) is value\n"
    )
    run_well(code)


@pytest.mark.parametrize("package", ["data", "diloco", "distributed", "state"])
def test_each_module_of_a_package_for_torch_publishes_its_names(package):
    pytest.importorskip("torch")
    homes = modules_of(f"pccl.{package}")
    for module in set(homes.values()):
        importlib.import_module(module)
    for name, home in homes.items():
        if home.startswith(f"pccl.{package}."):
            assert vars(sys.modules[f"pccl.{package}"])[name] is getattr(sys.modules[home], name)


def test_pickles_are_read_where_nothing_was_used_yet():
    error = pccl.PeerLostError(pccl.Result.RANK_CONNECTION_LOST, "all_reduce", "why")
    text = pickle.dumps([error, pccl.ReduceOp.AVG, pccl.Communicator]).hex()
    done = run_python(f"import pickle; print(*pickle.loads(bytes.fromhex({text!r})))")
    assert done.stdout.startswith("all_reduce: why (RANK_CONNECTION_LOST) ReduceOp.AVG <class 'pccl.Communicator'>"), done.stderr


def test_threads_may_use_names_for_the_first_time_at_once():
    code = (
        "import threading, pccl\n"
        "names = [name for name in dir(pccl) if not name.startswith('_')]\n"
        "barrier, found = threading.Barrier(16, timeout=50), [[] for _ in range(16)]\n"
        "def use(at):\n"
        "    barrier.wait()\n"
        "    found[at] = sorted((n, id(getattr(pccl, n))) for n in names[3 * at :] + names[: 3 * at])\n"
        "threads = [threading.Thread(target=use, args=(at,)) for at in range(16)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "assert found[0] and all(one == found[0] for one in found)\n"
    )
    run_well(code)


def test_exit_handlers_may_close_a_master_that_was_first_used_after_them():
    code = (
        "import atexit, pccl\natexit.register(lambda: kept[0].close())\nkept = [pccl.MasterNode('127.0.0.1:0')]\nkept[0].run()\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "still running" not in done.stderr


def test_packages_are_attributes():
    pytest.importorskip("torch")
    run_well("import pccl; assert pccl.distributed.join and pccl.state.__name__ == 'pccl.state'")
    assert pccl.diloco is importlib.import_module("pccl.diloco")


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
            assert "._" not in value.__module__, name
            assert getattr(importlib.import_module(value.__module__), name) is value


def test_help_lists_all_that_is_public():
    text = pydoc.plain(pydoc.render_doc(pccl))
    for name in public(pccl):
        assert re.search(rf"\b{name}\b", text), name


def test_a_package_that_lacks_torch_says_so_as_attribute():
    done = run_python("import sys; sys.modules['torch'] = None; import pccl; pccl.distributed")
    assert "pccl.distributed needs torch: pip install 'pccl[torch]'" in done.stderr.splitlines()[-1]


def test_type_checkers_see_the_names(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(
        "import pccl\nimport pccl.cuda\n"
        "reveal_type(pccl.ReduceOp.SUM)\nreveal_type(pccl.cuda.device_count())\nreveal_type(pccl.Communicator('').rank)\npccl.Nothing\n"
    )
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(pccl.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    for expected in ("pccl._core.enums.ReduceOp.SUM", '"int"', 'Module has no attribute "Nothing"'):
        assert expected in done.stdout, done.stdout


def test_tracebacks_have_public_names():
    done = run_python("import pccl; pccl.Communicator('127.0.0.1:1').update_topology()")
    assert done.stderr.splitlines()[-1].startswith("pccl.UsageError: update_topology: ")


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert re.fullmatch(r"\d+\.\d+\.\d+", pccl.__version__)
    assert pccl.__version__ == version("pccl")


def test_cuda_module(monkeypatch):
    assert pccl.cuda is pccl._pccl.cuda
    assert pccl.cuda.is_available() is pccl.cuda.is_cuda_available
    monkeypatch.setattr(pccl.cuda, "is_cuda_available", True)
    assert pccl.cuda.is_available() is True


def test_cuda_is_imported_like_any_module():
    code = "import pccl.cuda; from pccl.cuda import is_available; assert pccl.cuda.is_available is is_available is not None"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_demo_is_a_module_that_runs():
    done = subprocess.run([sys.executable, "-m", "pccl.demo", "--help"], capture_output=True, text=True, check=True)
    assert "kill one of them" in " ".join(done.stdout.split())


def test_each_reentrant_lock_has_its_reason():
    root = Path(pccl.__file__).parent
    having = {str(path.relative_to(root.parent)) for path in root.rglob("*.py") if "threading.RLock()" in path.read_text()}
    page = (Path(__file__).parents[2] / "docs" / "decisions" / "reentrant-locks.md").read_text()
    assert having == set(re.findall(r"`(pccl/[^`]+)`", page.partition("|---|")[2])) - {"pccl/data"}


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
    run_well(code)


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
    run_well(numpy_alone)


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
    (
        C,
        "(address=None, peer_group=0, p2p_connection_pool_size=0, *, master_recovery_limit=None, min_members=None, "
        "max_members=None, min_members_timeout=None, name=None, interface=None, keys=None, cert=None, key=None, ca=None, "
        "insecure=False, events=None, spans=None)",
    ),
    (C.connect, "(n_attempts=5, *, timeout=None, begin=None, wait_for_master=None, state=None)"),
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
    (
        pccl.MasterNode,
        "(listen_address, *, heartbeat_limit=None, masters=None, advertise=None, until_empty=None, "
        "keys=None, cert=None, key=None, ca=None, insecure=False, events=None)",
    ),
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
