"""Each fault that is done to a real run is on its page: a sentence that names the kind and the place, and a mark there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import CHROMIUM, browser_page
from namespaces import master_in
from performers import PATIENCE, MasterProcess, Performer, preload

from pccl import Communicator, PCCLError, ReduceOp

pytest.importorskip("click")
pytest.importorskip("prometheus_client")
pytest.importorskip("playwright.sync_api")

preload(__name__)

MEMBERS = 4
MEGABITS, SIZE = 200, 2 << 20
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium here")


class Worker:
    """A member that computes and reduces in a thread until it is killed."""

    def __init__(self, pipe: Connection, address: str, name: str) -> None:
        self.seconds: float | None = 0.02
        self.comm = Communicator(address, name=name)
        self._resume = threading.Event()

    def join(self, world: int) -> str:
        """Returns the id as the page has it."""
        self.comm.connect()
        self.comm.wait_for_peers(world, timeout=PATIENCE)
        return self.comm.uuid.hex[:8]

    def begin(self, elements: int) -> None:
        threading.Thread(target=self._work, args=(elements,), daemon=True).start()

    def _work(self, elements: int) -> None:
        array = np.ones(elements, np.float32)
        while True:
            if self.seconds is None:
                self._resume.wait()
            else:
                time.sleep(self.seconds)
            with contextlib.suppress(PCCLError):  # a member is lost
                self.comm.all_reduce(array, op=ReduceOp.MAX)

    def compute(self, seconds: float | None) -> None:
        """From now on before each operation; None: it does not enter any more."""
        self.seconds = seconds
        if seconds is not None:
            self._resume.set()


@contextlib.contextmanager
def workers(address: str, elements: int, environments: list[dict[str, str]]) -> Iterator[dict[str, Performer]]:
    """Members that work, by their ids; the i-th one is called host-i."""
    made = [Performer(Worker, i, (address, f"host-{i}"), environment) for i, environment in enumerate(environments, 1)]
    try:
        for one in made:
            one.tell("join", len(made))
        ids = [one.answer() for one in made]
        for one in made:
            one.ask("begin", elements)
        yield dict(zip(ids, made, strict=True))
    finally:
        for one in made:
            one.kill()


class Shown:
    """The page of a run, in a browser."""

    def __init__(self, page: Any, problems: list[str]) -> None:
        self.page, self.problems = page, problems

    def await_words(self, place: str, *words: str) -> None:
        """Until this part of the page has all of these."""
        began = time.monotonic()
        self.page.wait_for_function(
            "([place, ...words]) => words.every((one) => document.getElementById(place).textContent.includes(one))",
            arg=[place, *words],
            timeout=1000 * PATIENCE,
        )
        print(f"{time.monotonic() - began:.1f} s: {self.page.inner_text(f'#{place}')}")
        assert self.problems == []

    def await_mark(self, selector: str) -> None:
        """Until the page has such an element."""
        self.page.wait_for_selector(selector, state="attached", timeout=1000 * PATIENCE)

    def save(self, name: str) -> None:
        """For whoever wants to see it."""
        if folder := os.environ.get("TEST_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@contextlib.contextmanager
def page_of(address: str, chromium: str = CHROMIUM, prefix: tuple[str, ...] = ()) -> Iterator[Shown]:
    """`pccl web` as a process, and its page in Chromium."""
    command = [*prefix, sys.executable, "-m", "pccl", "web", "--master", address, "--interval", "0.5", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as web, browser_page(chromium) as (page, problems):
        try:
            assert web.stdout is not None
            url = web.stdout.readline().strip()
            page.goto(url)
            yield Shown(page, problems)
        finally:
            web.kill()


@pytest.mark.timeout(180)
def test_faults_of_members_and_of_the_master_are_on_the_page():
    with (
        MasterProcess(heartbeat_limit=10) as master,
        workers(master.address, 1000, [{}] * MEMBERS) as members,
        page_of(master.address) as shown,
    ):
        ids = list(members)
        shown.page.wait_for_selector(f"#members tr:nth-child({MEMBERS + 1})")
        shown.save("healthy")

        members[ids[1]].ask("compute", 0.2)
        shown.await_words("finding", "host-2", "computes for longer")
        shown.await_mark(f"#ring circle.named[data-member='{ids[1]}']")
        shown.await_mark(f"#members tr.named[data-member='{ids[1]}']")
        shown.save("straggler")
        members[ids[1]].ask("compute", 0.02)

        members[ids[2]].ask("compute", None)
        shown.await_words("finding", "host-3", "hangs")
        shown.await_mark(f"#ring circle.named[data-member='{ids[2]}']")
        shown.save("not-entering")
        members[ids[2]].ask("compute", 0.02)

        members[ids[0]].signal(signal.SIGSTOP)
        shown.await_words("finding", "host-1", "hangs")
        shown.await_mark(f"#ring circle.named[data-member='{ids[0]}']")
        shown.save("stopped")
        members[ids[0]].signal(signal.SIGCONT)

        members[ids[3]].kill()
        shown.await_words("news", "host-4", "was lost", "3 continue")
        assert shown.page.inner_text("#state").startswith("3 members")
        shown.await_mark(f"#ring circle.lost[data-member='{ids[3]}']")
        shown.save("killed")

        master.kill()
        shown.await_words("state", "No master answers")
        shown.await_mark("header.fails")
        shown.save("no-master")
        assert shown.problems == []


@pytest.fixture
def switch() -> Iterator[Any]:
    """Namespaces around the switch of bench/switch, with lines of 200 Mbit/s."""
    bench = str(Path(__file__).parents[2] / "bench")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCCL_INSECURE", "1")
        patch.syspath_prepend(bench)
        import netlab

        try:
            made = netlab.Switch(MEMBERS, 1)
        except (subprocess.CalledProcessError, OSError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        with made:
            for index in range(MEMBERS):
                made.tell(f"up {index} {MEGABITS} 0")
                made.tell(f"down {index} {MEGABITS} 0")
            yield made


@pytest.mark.plain("the switch is for plain connections")
@pytest.mark.timeout(180)
def test_faults_of_the_network_are_on_the_page(switch, tmp_path):
    home = switch.places[0]
    chromium = tmp_path / "chromium"
    chromium.write_text(f'#!/bin/sh\nexec ip netns exec {home.namespace} {CHROMIUM} "$@"\n')
    chromium.chmod(0o755)
    with (
        master_in(home.namespace, 10) as master,
        workers(f"{home.address}:{master.port}", SIZE // 4, [{"NETNS": place.namespace} for place in switch.places]) as members,
        page_of(f"{home.address}:{master.port}", str(chromium), ("ip", "netns", "exec", home.namespace)) as shown,
    ):
        ids = list(members)
        shown.await_words("state", f"{MEMBERS} members")
        # Ring order is that of the table.
        ring = [row.get_attribute("data-member") for row in shown.page.locator("#members tr[data-member]").all()]
        places = [ids.index(one) for one in ring]
        for rule, heal, words, mark in (
            (
                f"edge {places[0]} {places[1]} {MEGABITS // 5} 0",
                f"edge {places[0]} {places[1]} 0 0",
                ("path from", "is slow"),
                f"line.named[data-link='{ring[0]} {ring[1]}']",
            ),
            (
                f"edge {places[1]} {places[2]} 0 0.03",
                f"edge {places[1]} {places[2]} 0 0",
                ("path from", "loses packets"),
                f"line.named[data-link='{ring[1]} {ring[2]}']",
            ),
            (
                f"up {places[3]} {MEGABITS // 5} 0",
                f"up {places[3]} {MEGABITS} 0",
                ("sends slowly",),
                f"circle.named[data-member='{ring[3]}']",
            ),
        ):
            switch.tell(rule)
            shown.await_words("finding", *words)
            shown.await_mark(f"#ring {mark}")
            shown.save(words[-1].replace(" ", "-"))
            switch.tell(heal)
