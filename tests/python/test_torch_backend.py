"""How torch learns of the backend "pccl"."""

import os
import subprocess
import sys
import warnings

import pytest

from pccl import _torch_backend

KNOWN = (
    "import sys, torch, torch.distributed as dist; print(dist.is_backend_available('pccl'), 'pccl.distributed' in sys.modules)"
)


def run(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment}).stdout.strip()


def test_torch_knows_the_backend_by_itself() -> None:
    assert run(KNOWN) == "True False"


def test_the_import_makes_it_known_where_torch_loads_no_entry_points() -> None:
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert run(KNOWN, **off) == "False False"
    assert run(f"import pccl.distributed; {KNOWN}", **off) == "True True"


def test_a_supervisor_does_without_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pccl.distributed.run", "-m", "this"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "pccl.distributed" in imported
    assert not [name for name in imported if name.split(".")[0] == "torch"]
    assert run("import sys, pccl.distributed as package; package.supervise(); print('torch' in sys.modules)") == "False"
    assert run("import pccl.distributed as package; print(package.PeerLostError, package.__name__)").startswith(
        "<class 'pccl.distributed.PeerLostError'>"
    )
    assert run(f"import pccl.distributed; {KNOWN}") == "True True"


def test_the_package_imports_what_a_program_uses() -> None:
    code = "import sys, torch; old = set(sys.modules); import pccl.distributed; print(*set(sys.modules) - old)"
    loaded = {name for name in run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split() if name.startswith("pccl.")}
    assert loaded == {"pccl._exports", "pccl._torch_backend", "pccl._version", "pccl.distributed"}


def test_a_group_imports_no_more_of_torch_than_it_needs() -> None:
    """FSDP and DTensor take a second, in which all ranks of a job would wait for each other."""
    late = "torch.distributed.fsdp torch.distributed.tensor torch._dynamo sympy pccl.state"
    assert run(f"import sys, pccl.distributed._group; print(*sys.modules.keys() & set({late!r}.split()))") == ""
    assert run("import pccl.distributed as package; print('Elastic' in dir(package), package.Elastic.__module__)") == (
        "True pccl.distributed"
    )


def test_a_group_leaves_the_collector_of_cycles_as_it_was() -> None:
    make = "dist.init_process_group('pccl', store=dist.HashStore(), rank=0, world_size=1); dist.destroy_process_group()"
    for before, after in (("enable", "True"), ("disable", "False")):
        assert run(f"import gc, torch.distributed as dist; gc.{before}(); {make}; print(gc.isenabled())") == after


@pytest.mark.parametrize(
    ("version", "warned"), [("2.13.0+cpu", 0), ("2.14.1+cu130", 0), ("2.12.9", 1), ("2.15.0a0", 1), ("3.13", 1)]
)
def test_a_version_that_is_not_tested_gives_a_warning(version: str, warned: int) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _torch_backend.warn_if_untested(version)
    assert [version in str(one.message) for one in found] == [True] * warned


def test_an_unknown_membership_is_refused_at_once():
    from pccl.distributed import Options

    assert Options(membership="fixed").membership == "fixed"
    with pytest.raises(ValueError, match='must be "elastic", "fixed" or "strict", not \'fix\''):
        Options(membership="fix")
