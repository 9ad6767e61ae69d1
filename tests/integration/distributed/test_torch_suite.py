"""A choice of torch's own suite for backends. tests/compat/torch_suite.py runs all of it."""

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "compat" / "torch_suite.py"
CHOSEN = [
    "test_all_gather_object",
    "test_all_reduce_coalesced_sum",
    "test_all_to_all_single_unequal_split",
    "test_isend",
    "test_reduce_sum",
]


@pytest.mark.timeout(400)
def test_what_passes_with_gloo_passes_with_pccl(tmp_path: Path) -> None:
    command = [sys.executable, str(SUITE), "--world", "2", "--logs", str(tmp_path), *CHOSEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=360)
    assert ended.returncode == 0, ended.stdout
    assert "pccl, world 2: " in ended.stdout
