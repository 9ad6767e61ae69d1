#!/usr/bin/env python3
"""Runs torch's own suite for backends with pccl and with gloo, and tells what passes with gloo but not with pccl.

    tests/compat/torch_suite.py --world 2 --world 3      # everything, some minutes
    tests/compat/torch_suite.py --world 2 all_reduce     # the tests whose names contain one of the words

Many of torch's tests are skipped, or are others, for all backends but those that torch knows by name. Those of gloo are taken,
and "gloo" is exchanged where they make a group. Each test has processes of its own, which are forks of this one.
`torch_suite_exceptions.txt` lists what may fail with pccl, and why.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path

import pccl
from pccl._run import keys

EXCEPTIONS = Path(__file__).with_name("torch_suite_exceptions.txt")
LIMIT_SECONDS = 60
BACKENDS = ("gloo", "pccl")


def suite(backend: str, world: int) -> type[unittest.TestCase]:
    """torch's tests, with their processes forked and their backend exchanged."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world), TEMP_DIR=tempfile.mkdtemp())
    os.environ.setdefault("MASTER_PORT", "29500")  # read, but not used: the rendezvous is a file
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", str(LIMIT_SECONDS))
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    import torch
    from torch.testing._internal.distributed import distributed_test

    import pccl.distributed  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    for function in ("init_process_group", "new_group"):
        exchanging = exchanged(getattr(torch.distributed, function), backend)
        setattr(torch.distributed, function, exchanging)
        setattr(torch.distributed.distributed_c10d, function, exchanging)

    class TorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TorchSuite


def exchanged(function: Callable[..., object], backend: str) -> Callable[..., object]:
    """The function, with another backend where it is asked for gloo."""

    @functools.wraps(function)
    def call(*arguments: object, **options: object) -> object:
        arguments = tuple(backend if argument == "gloo" else argument for argument in arguments)
        if options.get("backend") == "gloo":
            options["backend"] = backend
        return function(*arguments, **options)

    return call


class Verdicts(unittest.TextTestResult):
    """What became of each test, by name."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.found: dict[str, str] = {}

    def _note(self, test: unittest.TestCase, verdict: str) -> None:
        self.found[test.id().rpartition(".")[2]] = verdict

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._note(test, "skipped")

    def addFailure(self, test: unittest.TestCase, error: object) -> None:  # noqa: N802
        super().addFailure(test, error)
        self._note(test, "failed")

    def addError(self, test: unittest.TestCase, error: object) -> None:  # noqa: N802
        super().addError(test, error)
        self._note(test, "failed")


def run_here(backend: str, world: int, words: list[str], only: str, out: str) -> None:
    """Runs the suite in this process, and writes the verdicts to a file."""
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(suite(backend, world))
    names = set(Path(only).read_text().split()) if only else None
    chosen = unittest.TestSuite()
    for test in tests:
        name = test.id().rpartition(".")[2]
        if (not words or any(word in name for word in words)) and (names is None or name in names):
            chosen.addTest(test)
    result = unittest.TextTestRunner(resultclass=Verdicts, verbosity=2, stream=sys.stdout).run(chosen)
    Path(out).write_text(json.dumps(result.found))  # type: ignore[attr-defined]


def run(backend: str, world: int, words: list[str], only: str, folder: Path) -> dict[str, str]:
    """Runs the suite in a process of its own; gives the verdicts."""
    out = folder / f"{backend}{world}.json"
    log = folder / f"{backend}{world}.log"
    command = [sys.executable, __file__, "--here", backend, "--out", str(out), "--world", str(world), "--only", only, *words]
    with log.open("w") as file, pccl.MasterNode("127.0.0.1:0") as master:  # one for all tests, which saves the start of one each
        environment = {**os.environ, "PCCL_MASTER": f"127.0.0.1:{master.port}"}
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
    if not out.exists():
        raise SystemExit(f"the suite ended before its end with {backend}: see {log}")
    found: dict[str, str] = json.loads(out.read_text())
    count = {verdict: list(found.values()).count(verdict) for verdict in ("passed", "failed", "skipped")}
    print(f"{backend}, world {world}: " + ", ".join(f"{number} {verdict}" for verdict, number in count.items()), flush=True)
    return found


def exceptions() -> dict[str, str]:
    """The tests that may fail with pccl, and why."""
    lines = [line for line in EXCEPTIONS.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition(": ") for line in lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="parts of the names of tests")
    parser.add_argument("--world", type=int, action="append", default=[])
    parser.add_argument("--only", default="", help="a file with names of tests")
    parser.add_argument("--logs", default="", help="where the logs go; a temporary folder otherwise")
    parser.add_argument("--keys", action="store_true", help="run with keys: pccl's connections are encrypted")
    parser.add_argument("--here", choices=BACKENDS, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    worlds = asked.world or [2, 3]
    if asked.here:
        run_here(asked.here, worlds[0], asked.words, asked.only, asked.out)
        return 0
    folder = Path(asked.logs or tempfile.mkdtemp(prefix="torch_suite"))
    folder.mkdir(exist_ok=True)
    if asked.keys:
        os.environ["PCCL_KEYS"] = str(keys.write_files(folder / "run", keys.new_keys())[0])
    excepted = exceptions()
    wrong = []
    for world in worlds:
        gloo, pccl = (run(backend, world, asked.words, asked.only, folder) for backend in BACKENDS)
        for name, verdict in gloo.items():
            if verdict == "passed" and pccl.get(name) != "passed" and name not in excepted:
                wrong.append(f"world {world}: {name} passes with gloo, and {pccl.get(name, 'was not run')} with pccl")
    print("\n".join(wrong) or f"whatever passes with gloo passes with pccl, but for {len(excepted)} named exceptions")
    if wrong:
        print(f"logs: {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
