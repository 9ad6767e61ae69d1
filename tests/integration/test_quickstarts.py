"""The quickstarts: each program, started by its page's command for one machine, ends with the same values in both processes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from peers import ENVIRONMENT

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 100
RESULTS = {
    "ddp": r"weights (\[\[\[.*?\]\], \[.*?\]\])",  # not to the end of the line, which another process may share
    "diloco": r"outer step 20: .*, 2 peers, parity ([0-9a-f]{32})",
    "own-loop": r"step 200: 2 peers, state ([0-9a-f]{32})",
}
"""What the processes print at their end, by page."""


def words_of(text: str) -> list[str]:
    """Returns the command of the section "One machine", run by this Python and not by the scripts beside it."""
    [command] = re.findall(r"^## One machine\n\n```\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    program, *arguments = shlex.split(command)
    module = {"pccl": "pccl", "torchrun": "torch.distributed.run"}[program]
    return [sys.executable, "-m", module, *arguments]


@pytest.mark.parametrize("name", RESULTS)
def test_the_program_runs_on_one_machine(name, tmp_path):
    text = (DOCS / f"quickstart-{name}.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(re.sub(r"time\.sleep\(.*?\)", "time.sleep(0)", code), encoding="utf-8")
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    command = subprocess.Popen(
        words_of(text),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = command.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        raise
    assert command.returncode == 0, err
    results = re.findall(RESULTS[name], out)
    assert len(results) == 2, out + err
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_has_the_program_and_the_commands_for_two_machines(name):
    text = (DOCS / f"quickstart-{name}.md").read_text(encoding="utf-8")
    two = text.partition("## Two machines\n")[2]
    assert "pccl master --listen 0.0.0.0:48148" in two
    assert "PCCL_MASTER=10.0.0.1:48148" in two
    assert "train.py" in two
