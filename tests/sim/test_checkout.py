"""The simulator comes with a checkout: a build for users lacks it, and `pccl sim` of an installed package says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path):
    """A folder with the two packages of a wheel, as in site-packages."""
    for package in ("pccl", "pccl_command"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def simulate(folder, *arguments):
    """Runs `pccl sim` with the package in `folder`, and returns the finished process."""
    command = [sys.executable, "-S", "-m", "pccl", "sim", *arguments]  # -S: no finder of an editable installation
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [[], ["--seeds", "3"], ["--no-such-option"]])
def test_an_installed_package_says_where_the_simulator_is(copy, arguments):
    done = simulate(copy, *arguments)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.startswith("Error: pccl sim needs a checkout of pccl, ")
    assert "`make build`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_installed_package_has_help(copy):
    done = simulate(copy, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pccl sim needs a checkout of pccl" in done.stdout


def test_another_package_of_that_name_is_not_run(copy):
    (copy / "sim").mkdir()
    (copy / "sim" / "command.py").write_text("print('a stranger')\n", encoding="utf-8")
    done = simulate(copy)
    assert done.returncode == 2
    assert not done.stdout


@pytest.mark.parametrize(("content", "reason"), [(None, "is not built"), ("no library", "cannot be loaded")])
def test_a_checkout_without_the_module_says_how_to_build_it(copy, content, reason):
    (copy / "csrc").mkdir()
    (copy / "sim").mkdir()
    shutil.copy(ROOT / "sim" / "command.py", copy / "sim")
    if content:
        (copy / "sim" / "_simulator.abi3.so").write_text(content, encoding="utf-8")
    done = simulate(copy, "--seeds", "3")
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.startswith(f"Error: pccl sim: the simulator {reason}")
    assert done.stderr.endswith(f"; run `make build` in {copy}\n")


@pytest.mark.skipif(shutil.which("cmake", path=Path(sys.executable).parent) is None, reason="needs cmake in the environment")
@pytest.mark.parametrize("simulator", [False, True])
def test_only_the_option_builds_the_simulator(tmp_path, simulator):
    """As scikit-build-core configures a wheel, and an editable installation."""
    tools = Path(sys.executable).parent
    command = [tools / "cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-S", ROOT, "-B", tmp_path]
    options = ["SKBUILD=2", "PCCL_CUDA_KERNELS=OFF", f"Python_EXECUTABLE={sys.executable}"]
    options += ["PCCL_SIMULATOR=ON"] if simulator else []
    subprocess.run([*command, *(f"-D{option}" for option in options)], capture_output=True, timeout=100, check=True)
    assert ("_simulator" in (tmp_path / "build.ninja").read_text(encoding="utf-8")) == simulator
    installed = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("cmake_install.cmake"))
    assert "_native" in installed
    assert "libpccl_cuda.so" in installed
    assert "_simulator" not in installed
