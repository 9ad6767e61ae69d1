"""The simulator finds every deliberate bug of mutants.py within the seeds stated there, and nothing where there is none."""

import fcntl
import os
import shutil

import mutants
import pytest

pytestmark = [pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "objects"  # once for all workers
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            mutants.compile_all(folder)
            (folder / "whole").touch()
    return mutants.objects_in(folder)


def test_passes_without_a_bug(objects, tmp_path):
    found, said = mutants.hunt(mutants.link(objects, tmp_path / "sound"), 1, 200)
    assert found is None, said


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_finds(mutant, objects, tmp_path):
    found, said = mutants.hunt(mutants.build(mutant, objects, tmp_path), mutant.first, mutant.seeds, mutant.faults)
    assert found is not None, f"{mutant.seeds} seeds pass in spite of it: {said.splitlines()[-2:]}"
