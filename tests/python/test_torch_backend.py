"""How torch learns of the backend "pccl"."""

import os
import subprocess
import sys

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
