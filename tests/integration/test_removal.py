"""Whoever has the keys of the masters drains and expels members, and sees their stacks; nobody else does."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from browsers import browser_page
from click.testing import CliRunner
from peers import ENVIRONMENT, PATIENCE, Background, address_of, form, on_all

import pccl
from pccl import Communicator, MasterNode
from pccl._core.address import parse_endpoint
from pccl._watch import diagnosis, stacks
from pccl.cli import main
from pccl.cli.remove import find, why_not
from pccl.cli.top import user_name
from pccl.monitor.server import ACT_COOKIE, COOKIE

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.plain("it has keys of its own")


@pytest.fixture
def keys(tmp_path, monkeypatch) -> Path:
    for name in ("PCCL_KEYS", "PCCL_CERT", "PCCL_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    assert CliRunner().invoke(main, ["keys", str(tmp_path / "run")]).exit_code == 0
    return tmp_path / "run"


@contextlib.contextmanager
def run_of(count: int, master_keys: str | None, peer_keys: str | None) -> Iterator[tuple[str, list[Communicator]]]:
    """The address of a master, and members called host-0 and so on."""
    with MasterNode("127.0.0.1:0", keys=master_keys) as master, contextlib.ExitStack() as stack:
        comms = [stack.enter_context(Communicator(address_of(master), name=f"host-{i}", keys=peer_keys)) for i in range(count)]
        on_all(comms, lambda comm, rank: (comm.connect(timeout=PATIENCE), form(comm, count)))
        yield address_of(master), comms


def invoke(command: str, address: str, member: str, keys: str | None, *options: str) -> Any:
    return CliRunner().invoke(main, [command, member, "--master", address, *(["--keys", keys] if keys else []), *options])


def leaves(comm: Communicator) -> None:
    """It leaves at its next update, as after `leave`."""
    with pytest.raises(pccl.Left):
        comm.update_topology()


def test_no_name_hides_another_member():
    members: Any = [SimpleNamespace(uuid=UUID(int=1 << 127), name="host"), SimpleNamespace(uuid=UUID(int=2), name="80000000")]
    assert find(members, "80000000") is members[0]
    assert find(members, "host") is members[0]
    assert find(members, str(members[1].uuid)) is members[1]
    for text in ("8", "", "-", "0000000g"):  # the first is the beginning of an id and of no name
        assert (find(members, text) is members[0]) == (text == "8")
    members[1].name = "8"
    assert find(members, "8") is None
    assert "2 members are named 8" in why_not(members, "8")
    assert "give the beginning of an id: 80000000, 00000000" in why_not(members, "8")


def test_commands(keys):
    with run_of(4, f"{keys}.master", f"{keys}.peer") as (address, comms):
        refused = invoke("drain", address, "host-1", f"{keys}.peer")
        assert refused.exit_code == 2
        assert "need the key file of the masters (NAME.master)" in refused.output
        missed = invoke("drain", address, "host", f"{keys}.master")
        assert missed.exit_code == 2
        assert missed.output.startswith('Error: no member is named "host"')
        assert all(f"host-{i} ({comm.uuid.hex[:8]})" in missed.output for i, comm in enumerate(comms))
        group = comms[0].group(comms[0].members)
        drained = invoke("drain", address, "host-1", f"{keys}.master")
        assert drained.exit_code == 0, drained.output
        assert "leaves at its next update" in drained.output
        others = [Background(comms[i].update_topology) for i in (0, 2, 3)]
        leaves(comms[1])
        for one in others:
            one.result()
        told = f"the operator removed it ({user_name()}@{socket.gethostname()}: a disk fails, \u00fcber)"[:127]
        expelled = invoke("expel", address, comms[2].uuid.hex[:8], f"{keys}.master", "--reason", "a disk fails, \u00fcber")
        assert expelled.exit_code == 0, expelled.output
        with pytest.raises(pccl.PCCLError, match=re.escape(told)):
            comms[2].update_topology()
        on_all([comms[0], comms[3]], lambda comm, _: comm.update_topology())
        with pytest.raises(pccl.PeerLostError) as caught:
            comms[0].barrier(group=group, survivors=False)
        causes = dict(zip(caught.value.reasons, caught.value.causes, strict=True))
        drained_by = told.replace("removed", "drained").split(":")[0] + ")"
        assert causes == {pccl.LossReason.DRAINED: drained_by, pccl.LossReason.EXPELLED: told}
        assert told in str(caught.value)
        texts = [one.text for one in comms[0].diagnose().departures]
        assert texts == [f"was drained: {drained_by}", f"was expelled: {told}"]
        assert comms[0].world_size == 2


def test_a_run_without_keys_refuses(keys):
    with run_of(2, None, None) as (address, comms):
        for given, words in ((None, "the key file of the masters"), (f"{keys}.master", "the master cannot be asked")):
            result = invoke("expel", address, "host-1", given)
            assert result.exit_code != 0
            assert words in result.output
        on_all(comms, lambda comm, _: comm.update_topology())
        assert comms[0].world_size == 2


def hangs_in_this_function(began: threading.Event, ends: threading.Event) -> None:
    began.set()
    assert ends.wait(PATIENCE)


@pytest.fixture
def hung():
    """A thread of this process that hangs."""
    began, ends = threading.Event(), threading.Event()
    thread = threading.Thread(target=hangs_in_this_function, args=(began, ends), name="hung \x1b[31m thread")
    thread.start()
    assert began.wait(PATIENCE)
    yield
    ends.set()
    thread.join()


def test_stacks_name_the_function_that_hangs(keys, hung):
    with run_of(2, f"{keys}.master", f"{keys}.peer") as (address, _):
        told = invoke("stacks", address, "host-1", f"{keys}.master")
        assert told.exit_code == 0, told.output
        assert "in hangs_in_this_function\n" in told.output
        assert told.output.startswith("thread 'MainThread', innermost call first:\n")
        assert "\x1b" not in told.output
        refused = invoke("stacks", address, "host-1", f"{keys}.peer")
        assert refused.exit_code == 2
        assert "need the key file of the masters (NAME.master)" in refused.output
        with Web(address, f"{keys}.master") as web:
            query = parse_qs(urlsplit(web.act_url).query)
            both = {COOKIE: query["token"][0], ACT_COOKIE: query["act"][0]}
            status, text = web.post(both, {"action": "stacks", "member": "host-0"})
            assert status == 200
            assert "in hangs_in_this_function\n" in text
    assert not [thread for thread in threading.enumerate() if thread.name == "pccl:stacks"]


def test_a_member_that_gives_no_stacks(keys, monkeypatch):
    ends = threading.Event()
    with run_of(2, f"{keys}.master", f"{keys}.peer") as (address, comms):

        def ask(uuid: UUID, timeout: float) -> str:
            return diagnosis.stacks_of(parse_endpoint(address), uuid, f"{keys}.master", timeout)

        monkeypatch.setattr(stacks, "stacks", lambda: b"late" if ends.wait(PATIENCE) else b"")
        with pytest.raises(pccl.PCCLTimeoutError, match="the member has not answered in 300 ms"):
            ask(comms[1].uuid, 0.3)
        with pytest.raises(pccl.PCCLError, match="no such peer"):
            ask(UUID(int=5), PATIENCE)
        waits = Background(lambda: ask(comms[1].uuid, PATIENCE))
        ends.set()
        assert waits.result() == "late"
        monkeypatch.setattr(stacks, "stacks", lambda: b"x" * stacks.BYTES_MOST)
        assert len(ask(comms[0].uuid, PATIENCE)) == stacks.BYTES_MOST
        on_all(comms, lambda comm, _: comm.update_topology())
        assert comms[0].world_size == 2


def test_a_member_without_python_says_so(keys, monkeypatch):
    monkeypatch.setattr(stacks.Watch, "start", lambda *_: None)
    with run_of(1, f"{keys}.master", f"{keys}.peer") as (address, _):
        assert "runs no Python" in invoke("stacks", address, "host-0", f"{keys}.master").output


class Web:
    """`pccl web` as a process."""

    def __init__(self, address: str, keys: str) -> None:
        command = [sys.executable, "-m", "pccl", "web", "--master", address, "--keys", keys, "--interval", "0.3"]
        self.process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.act_url = self.process.stdout.readline().strip().partition(": ")[2] if keys.endswith(".master") else ""

    def post(self, cookies: dict[str, str], body: Any, **headers: str) -> tuple[int, str]:
        url = urlsplit(self.url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=PATIENCE)
        cookie = "; ".join(f"{name.format(port=url.port)}={value}" for name, value in cookies.items())
        given = {"Cookie": cookie, "Origin": f"http://{url.netloc}", "X-PCCL": "act", **headers}
        connection.request("POST", "/act", body=json.dumps(body), headers=given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


def test_the_page_acts_only_for_who_has_the_token_of_the_masters_and_asks_itself(keys):
    with run_of(2, f"{keys}.master", f"{keys}.peer") as (address, comms):
        member = comms[1].uuid.hex[:8]
        asked = {"action": "expel", "member": member}
        with Web(address, f"{keys}.peer") as web:
            token = parse_qs(urlsplit(web.url).query)["token"][0]
            assert web.post({COOKIE: token, ACT_COOKIE: token}, asked)[0] == 403
        with Web(address, f"{keys}.master") as web:
            query = parse_qs(urlsplit(web.act_url).query)
            assert query["token"] == [token]  # the page is the same; who may act needs one more
            both = {COOKIE: token, ACT_COOKIE: query["act"][0]}
            for cookies, body, headers, status in (
                ({COOKIE: token}, asked, {}, 403),
                ({COOKIE: token, ACT_COOKIE: token}, asked, {}, 403),
                ({ACT_COOKIE: query["act"][0]}, asked, {}, 403),
                ({}, asked, {"Authorization": f"Bearer {token}"}, 403),
                (both, asked, {"Origin": "http://elsewhere:80"}, 403),
                (both, asked, {"Origin": ""}, 403),
                (both, asked, {"X-PCCL": ""}, 403),
                (both, {"action": "stop", "member": member}, {}, 400),
                (both, {"action": "expel", "member": 5}, {}, 400),
                (both, [], {}, 400),
                (both, {"action": "expel", "member": "0" * 2000}, {}, 400),
                (both, {"action": "expel", "member": "00000000"}, {}, 409),
            ):
                found, text = web.post(cookies, body, **headers)
                assert found == status, (text, body, headers)
            on_all(comms, lambda comm, _: comm.update_topology())
            assert comms[0].world_size == 2  # nothing has happened
            assert web.post(both, {"action": "drain", "member": member}) == (200, "done\n")
            other = Background(comms[0].update_topology)
            leaves(comms[1])
            other.result()


@pytest.mark.timeout(90)
def test_a_button_drains_at_the_second_press(keys):
    with (
        browser_page() as (page, _),
        run_of(2, f"{keys}.master", f"{keys}.peer") as (address, comms),
        Web(address, f"{keys}.master") as web,
    ):
        page.goto(web.url)
        page.wait_for_selector("#members tr[data-member]")
        assert page.locator("#members button").count() == 0  # whoever sees the page only sees it
        page.goto(web.act_url)
        page.locator(f"tr[data-member='{comms[0].uuid.hex[:8]}'] button[data-action='stacks']").click()
        page.wait_for_function("() => document.getElementById('stacks').textContent.includes('innermost call first')")
        button = page.locator(f"tr[data-member='{comms[1].uuid.hex[:8]}'] button[data-action='drain']")
        button.click()
        assert button.inner_text() == "drain host-1?"
        assert not comms[0].leaving
        button.click()
        page.wait_for_function("() => document.getElementById('events').textContent.includes('drained by hand: host-1')")
        other = Background(comms[0].update_topology)
        leaves(comms[1])
        other.result()
