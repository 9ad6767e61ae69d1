"""packaging/: the files fit each other, the sources and `pccl`, and tools that are there accept them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

import pccl
from pccl._run import keys
from pccl.cli import main
from pccl.lab.ports import free_ports

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
SERVICE = (PACKAGING / "pccl-master.service").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def recipe() -> dict[str, Any]:
    return yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text(encoding="utf-8"))


def arguments_of_service() -> list[str]:
    [command] = re.findall(r"^ExecStart=(.*)$", SERVICE, re.MULTILINE)
    program, *arguments = shlex.split(command)
    assert program == "/opt/pccl/bin/pccl"
    return arguments


def test_the_recipe_is_of_this_version_and_has_its_requirements():
    made = recipe()
    assert made["context"]["version"] == pccl.__version__
    python = f"python {PROJECT['project']['requires-python']}"
    assert sorted(made["requirements"]["run"]) == sorted([python, *spaced(PROJECT["project"]["dependencies"])])
    assert python in made["requirements"]["host"]
    assert set(spaced(PROJECT["build-system"]["requires"])) <= set(made["requirements"]["host"])
    assert made["about"]["summary"] in PROJECT["project"]["description"]


def test_a_wheel_is_built_beside_the_editable_build():
    """With one folder for both, `pip install .` removes the simulator's objects, which `make lint` may be reading."""
    assert "{state}" in PROJECT["tool"]["scikit-build"]["build-dir"]


def spaced(requirements: list[str]) -> list[str]:
    """Returns requirements as conda writes them: with a space before the version."""
    return [re.sub(r"(?<=[\w-])(?=[<>=])", " ", requirement) for requirement in requirements]


def test_the_image_gets_the_sources_that_the_build_reads():
    lines = (PACKAGING / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    taken = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in taken)
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"add_executable\(\w+ (\w+)/", text) if name not in ("bench", "sim", "tests")}
    assert {"tools"} <= named <= taken
    assert {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["tool"]["scikit-build"]["wheel"]["packages"]} <= taken


def test_the_commands_of_the_image_exist():
    text = (PACKAGING / "Dockerfile").read_text(encoding="utf-8")
    commands = re.findall(r"pccl (\w+)", text) + re.findall(r'"pccl", "(\w+)"', text)
    assert sorted(set(commands)) == ["info", "master"]
    assert set(commands) <= set(main.list_commands(click.Context(main)))
    options = set(re.findall(r"cmake\.define\.(\w+)=", text))
    assert options <= set(re.findall(r"PCCL_\w+", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")))


def test_the_command_of_the_service_starts_a_master(tmp_path: Path):
    keys.write_files(tmp_path / "run", keys.new_keys())
    [port] = free_ports(1)
    options = f"--masters 127.0.0.1:{port}"
    words = [word for part in arguments_of_service() for word in (options.split() if part == "$MASTER_OPTIONS" else [part])]
    words = [word.replace("%d", str(tmp_path)).replace("0.0.0.0:48148", f"127.0.0.1:{port}") for word in words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")}
    with subprocess.Popen(
        [sys.executable, "-m", "pccl", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as master:
        try:
            assert master.stdout is not None
            assert f"listening on 127.0.0.1:{port}" in master.stdout.readline()
        finally:
            master.send_signal(signal.SIGTERM)
        assert master.wait(30) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="takes systemd-analyze")
def test_systemd_accepts_the_service(tmp_path: Path):
    file = tmp_path / "pccl-master.service"
    file.write_text(SERVICE.replace("/opt/pccl/bin/pccl", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="takes hadolint")
def test_hadolint_accepts_the_image():
    done = subprocess.run(["hadolint", str(PACKAGING / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_site_is_built_without_playwright(tmp_path):
    bin = tmp_path / "bin"
    bin.mkdir()
    python = bin / "python"  # pytest would end with 5: it finds no test
    python.write_text('#!/bin/sh\ncase "$*" in *playwright*) exit 1;; *pytest*) exit 5;; esac\n')
    python.chmod(0o755)
    command = ["make", "-o", ".venv/built", "site", f"BIN={bin}", "PIP=true"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is not checked: Playwright is missing" in done.stdout
