"""The simulator, or a C test, finds every deliberate bug of mutants.py, and nothing where there is none.

A run takes a third of them, another one whenever the core has changed. TEST_MUTANTS=all (`make mutants`) takes all.
"""

import fcntl
import hashlib
import os
import shutil

import mutants
import pytest

pytestmark = [pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"), pytest.mark.timeout(300)]


def chosen() -> list[mutants.Mutant]:
    """The deliberate bugs of this run."""
    if os.environ.get("TEST_MUTANTS") == "all":
        return mutants.MUTANTS
    core = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((mutants.ROOT / "csrc").rglob("*.[ch]"))))
    return mutants.MUTANTS[core.digest()[0] % 3 :: 3]


CHOSEN = chosen()


def made_once(tmp_path_factory, name, make):
    """Makes something in a folder that all workers share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            make(folder)
            (folder / "whole").touch()
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return made_once(tmp_path_factory, "library", mutants.compile_library) / "core.a"


def of_tests(condition):
    """The chosen mutants that a test with this property has to find."""
    return [pytest.param(one, id=one.name) for one in CHOSEN if condition(one.test)]


def test_passes_without_a_bug(library, tmp_path):
    found, said = mutants.hunt(mutants.build(None, mutants.SIMULATOR, library, tmp_path), 1, seeds=200)
    assert found is None, said


@pytest.mark.parametrize("mutant", of_tests(mutants.SIMULATOR.__eq__))
def test_finds(mutant, library, tmp_path):
    program = mutants.build(mutant, mutant.test, library, tmp_path)
    found, said = mutants.hunt(program, mutant.first, mutant.faults)
    assert found is not None, f"{mutants.SEEDS} seeds pass in spite of it: {said.splitlines()[-2:]}"


@pytest.mark.parametrize("test", sorted({one.test for one in CHOSEN} - {mutants.SIMULATOR}))
def test_a_c_test_passes_without_a_bug(test, library, tmp_path):
    assert mutants.passes(mutants.build(None, test, library, tmp_path), 240)


@pytest.mark.parametrize("mutant", of_tests(mutants.SIMULATOR.__ne__))
def test_a_c_test_finds(mutant, library, tmp_path):
    assert not mutants.passes(mutants.build(mutant, mutant.test, library, tmp_path)), f"{mutant.test} passes in spite of it"
