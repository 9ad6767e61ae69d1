"""The page and the metrics of a run: who may see them, and what they have; `pccl web` and `pccl replay`."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("click")
pytest.importorskip("prometheus_client")

from browsers import browser_page
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from test_history import departure, joiner, member, straggler, told

import pccl
from pccl import LossReason
from pccl._core.address import is_loopback
from pccl.cli import main
from pccl.cli.top import Access
from pccl.cli.web import _tokens
from pccl.lab.ports import free_ports
from pccl.monitor import server
from pccl.monitor.history import Log, Recorder, create_file, read_file
from pccl.monitor.metrics import Metrics
from pccl.monitor.server import CONNECTIONS_MOST, COOKIE, FILES, STATIC, Page

TOKEN = "right"
PATIENCE = 30


@pytest.fixture
def page():
    log, metrics = Log(), Metrics()
    made = Page(("127.0.0.1", 0), log, lambda: (metrics.text(), metrics.content_type), TOKEN)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def get(page: Page, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*page.server_address[:2], timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


@pytest.mark.parametrize("path", [*FILES, "/events", "/metrics", "/nothing"])
def test_without_the_token_nothing_is_seen(page, path):
    cookie = COOKIE.format(port=page.server_address[1])
    for query, headers in (
        ("", {}),
        ("?token=wrong", {}),
        ("", {"Authorization": "Bearer wrong"}),
        ("", {"Cookie": f"{cookie}=wrong"}),
        ("", {"Cookie": "\x01=;;"}),
    ):
        answer = get(page, path + query, **headers)
        assert answer.status == 403
        assert b"token" in answer.read()


def test_a_wrong_token_in_the_address_is_never_sent_back(page):
    for wrong in ("x%0d%0a%0d%0aalert(1)", "wrong"):
        answer = get(page, f"/page.js?token={wrong}", Cookie=f"{COOKIE.format(port=page.server_address[1])}={TOKEN}")
        assert answer.status == 200
        assert answer.getheader("Set-Cookie") is None
        assert not answer.read().startswith(b"alert")


def test_the_token_opens_the_page_in_three_ways(page):
    page.log.add([{"at": 1.0, "kind": "epoch"}])
    answer = get(page, f"/?token={TOKEN}")
    assert answer.status == 200
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    assert "HttpOnly" in answer.headers["Set-Cookie"]
    for headers in ({"Cookie": cookie}, {"Authorization": f"Bearer {TOKEN}"}):
        answer = get(page, "/events", **headers)
        assert answer.status == 200
        assert json.load(answer) == {
            "log": page.log.name,
            "next": 1,
            "live": True,
            "acts": False,
            "events": [{"at": 1.0, "kind": "epoch"}],
        }


def test_a_reader_of_another_log_gets_all_of_this_one(page):
    """A page that stays open while its server is restarted asks for numbers that the new log does not have yet."""
    page.log.add([{"at": 1.0, "kind": "epoch"}])
    answer = json.load(get(page, f"/events?after=5000&token={TOKEN}"))
    assert (answer["next"], answer["events"]) == (1, [{"at": 1.0, "kind": "epoch"}])


def test_files_are_small_and_ask_nobody_else(page):
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < 200_000
    for path in FILES:
        body = get(page, f"{path}?token={TOKEN}").read().decode()
        assert "://" not in body.replace("http://www.w3.org/2000/svg", "")
    answer = get(page, f"/?token={TOKEN}")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("path", "status"), [("/../server.py", 404), ("/nothing", 404), ("/events?after=-1", 400), ("/events?after=x", 400)]
)
def test_wrong_paths(page, path, status):
    assert get(page, path, Authorization=f"Bearer {TOKEN}").status == status


def test_what_is_no_request_leaves_the_page_as_it_is(page):
    for rubbish in (b"\x16\x03\x01\x00\xff" * 100, b"GET " + b"x" * 70000, b"POST / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(page.server_address[:2], PATIENCE) as end:
            end.sendall(rubbish)
            end.shutdown(socket.SHUT_WR)
            while end.recv(4096):
                pass
    assert get(page, f"/?token={TOKEN}").status == 200


def slow(page: Page) -> socket.socket:
    """A connection that has sent the beginning of a request."""
    end = socket.create_connection(page.server_address[:2], PATIENCE)
    end.sendall(b"GET / HTTP/1.1\r\nX: ")
    return end


@contextlib.contextmanager
def trickle(ends: list[socket.socket]):
    """Sends a byte on each of them all the time."""
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.1):
            for end in ends:
                with contextlib.suppress(OSError):
                    end.send(b"x")

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for end in ends:
            end.close()


def wait_for_end(end: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while end.recv(4096):
            pass


@pytest.mark.timeout(60)
def test_slow_connections_keep_nobody_from_the_page(page):
    ends = [slow(page) for _ in range(CONNECTIONS_MOST)]
    with trickle(ends):
        for path in ("/metrics", "/"):
            assert get(page, path, Authorization=f"Bearer {TOKEN}").status == 200
        wait_for_end(ends[0])  # the oldest one has given its place


@pytest.mark.timeout(60)
@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\r\nX: ", b"GET /", b"", b"POST /act HTTP/1.1\r\nContent-Length: 9\r\n"])
def test_a_request_has_one_deadline_however_often_bytes_come(page, monkeypatch, request_):
    monkeypatch.setattr(server, "READ_SECONDS", 0.5)
    end = socket.create_connection(page.server_address[:2], PATIENCE)
    end.sendall(request_)
    with trickle([end]):
        wait_for_end(end)


@pytest.mark.timeout(60)
def test_who_has_shown_the_token_keeps_the_place(page, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_MOST", 4)
    owners = [socket.create_connection(page.server_address[:2], PATIENCE) for _ in range(4)]
    for end in owners:
        end.sendall(f"GET /events HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    limit = time.monotonic() + PATIENCE
    while sum(page._served.values()) < 4:  # each waits for an event
        assert time.monotonic() < limit
        time.sleep(0.01)
    for _ in range(3):
        with slow(page) as stranger:
            wait_for_end(stranger)
    page.log.add([{"at": 1.0, "kind": "epoch"}])
    for end in owners:
        assert end.recv(4096).startswith(b"HTTP/1.1 200")
        end.close()


@pytest.mark.timeout(60)
def test_a_request_of_many_bytes_is_cut_off(page):
    with socket.create_connection(page.server_address[:2], PATIENCE) as end, contextlib.suppress(OSError):
        end.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(64 << 10):  # 64 MiB: more than the buffers of sockets hold
            end.sendall(b"X: " + b"x" * 1000 + b"\r\n")
        pytest.fail("all of it was read")
    assert get(page, f"/?token={TOKEN}").status == 200


def test_metrics():
    metrics, recorder = Metrics(), Recorder()
    (up,) = [one for one in text_string_to_metric_families(metrics.text().decode()) if one.name == "pccl_master_up"]
    assert up.samples[0].value == 0
    for second, answer in enumerate([told(member(1)), told(member(1), member(2), epoch=5, findings=(straggler(member(2)),))]):
        metrics.observe(answer, recorder.observe(float(second), answer))
    families = {one.name: one for one in text_string_to_metric_families(metrics.text().decode())}
    assert len(families) <= 40
    assert families["pccl_members"].samples[0].value == 2
    assert families["pccl_joins"].samples[0].value == 1
    assert families["pccl_epochs"].samples[0].value == 5  # also those between two answers
    units = {one.name.removeprefix("pccl_"): one.unit for one in families.values() if one.unit}
    assert units.items() >= {("member_late_seconds", "seconds"), ("finding_cost_ratio", "ratio")}
    assert families["pccl_losses"].samples[0].value == 0
    found = families["pccl_member_operation_seconds"].samples
    assert {one.labels["name"]: one.value for one in found} == {"host-1": pytest.approx(0.05), "host-2": pytest.approx(0.05)}
    (finding,) = families["pccl_finding_cost_ratio"].samples
    assert finding.labels == {"kind": "straggler", "member": "00000002", "other": ""}
    assert finding.value == 0.5
    metrics.observe(None, recorder.silence(3.0, "gone"))
    families = {one.name: one for one in text_string_to_metric_families(metrics.text().decode())}
    assert families["pccl_master_up"].samples[0].value == 0
    assert "pccl_members" not in families


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["web", "--master", "127.0.0.1:1", "--listen", "0.0.0.0:0"], "ssh -L"),
        (["web", "--master", "127.0.0.1:1", "--listen", "nowhere"], "--listen"),
        (["web", "--master", "nowhere"], "--master"),
        (["web", "--master", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--events", "/dev/null/x"], "--events"),
        (["web", "--master", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--keys", "/nowhere"], "/nowhere"),
        (["master", "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0"], "--web needs to know the port"),
        (["replay", "/nowhere"], "/nowhere"),
        (["replay", __file__], "has no events"),
    ],
)
def test_wrong_arguments(arguments, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("host", "found"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("a", False)],
)
def test_loopback(host, found):
    assert is_loopback(host) == found


def test_the_token_of_keys_is_the_same_for_both_roles_and_tells_no_secret(tmp_path):
    run = tmp_path / "run"
    assert CliRunner().invoke(main, ["keys", str(run)]).exit_code == 0
    tokens = {_tokens(Access(f"{run}.{role}"))[0] for role in ("master", "peer")}
    assert len(tokens) == 1
    assert tokens.pop() not in Path(f"{run}.peer").read_text()


def test_the_token_of_actions_is_another_one_at_each_start(tmp_path):
    run = tmp_path / "run"
    assert CliRunner().invoke(main, ["keys", str(run)]).exit_code == 0
    acts = [_tokens(Access(f"{run}.{role}"))[1] for role in ("master", "master", "peer")]
    assert len(set(acts)) == 3
    assert [bool(one) for one in acts] == [True, True, False]


@pytest.mark.parametrize(
    ("options", "acts", "secure"), [([], True, False), (["--public"], False, False), (["--public", "--behind-tls"], True, True)]
)
def test_a_public_page_acts_only_behind_tls(tmp_path, monkeypatch, options, acts, secure):
    def sleep(_seconds: float) -> None:
        raise KeyboardInterrupt

    made: list[Page] = []
    monkeypatch.setattr("pccl.cli.top.Masters.ask", lambda self: told(member(1)))
    monkeypatch.setattr("pccl.cli.web.time.sleep", sleep)
    monkeypatch.setattr(Page, "serve_forever", lambda self: made.append(self))
    run = tmp_path / "run"
    assert CliRunner().invoke(main, ["keys", str(run)]).exit_code == 0
    where = ["--master", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--keys", f"{run}.master"]
    output = CliRunner().invoke(main, ["web", *where, *options]).output
    assert ("&act=" in output) == acts
    assert ("--behind-tls" in output) != acts
    assert (made[0].act is not None, made[0].secure) == (acts, secure)


class Command:
    """A command that prints the address of its page."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pccl", *arguments, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def events(self, number: int) -> list[dict]:
        """The first ones, as soon as there are so many."""
        url = urlsplit(self.url)
        found: list[dict] = []
        while len(found) < number:
            connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=PATIENCE)
            connection.request("GET", f"/events?after={len(found)}&{url.query}")
            answer = json.load(connection.getresponse())
            assert answer["events"]
            found += answer["events"]
        return found

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


@pytest.mark.timeout(90)
def test_a_run_is_recorded_and_shown_again(tmp_path):
    path = tmp_path / "run.events"
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}", name="only") as comm:
        comm.connect()
        with Command("web", "--master", f"127.0.0.1:{master.port}", "--events", str(path)) as web:
            seen = web.events(3)
    assert [event["kind"] for event in seen[:2]] == ["master", "member"]
    assert seen[1]["name"] == "only"
    with Command("replay", str(path)) as again:
        assert again.events(3)[:3] == seen[:3]


@pytest.mark.timeout(60)
def test_a_full_disk_ends_the_file_and_not_the_page(monkeypatch):
    """The device is full from the first event on; the page shows them all the same."""
    monkeypatch.setattr("pccl.cli.top.Masters.ask", lambda self: told(member(1)))
    seen: list[int] = []

    def sleep(_seconds: float) -> None:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("pccl.cli.web.time.sleep", sleep)
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("pccl.cli.web.create_file", lambda _: full)
        result = CliRunner().invoke(main, ["web", "--master", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--events", "run.events"])
    assert result.output.count("run.events cannot be written any more: No space left on device; the page continues") == 1
    assert len(seen) == 3


@pytest.mark.timeout(60)
def test_a_clock_that_is_set_back_stops_no_sample(monkeypatch, tmp_path):
    monkeypatch.setattr("pccl.cli.top.Masters.ask", lambda self: told(member(1, live=len(pauses))))
    pauses: list[float] = []
    real = time.time

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        monkeypatch.setattr("time.time", lambda: real() - 3600)
        monkeypatch.setattr("time.clock_gettime", lambda _: began + len(pauses))
        if len(pauses) == 4:
            raise KeyboardInterrupt

    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr("pccl.cli.web.time.sleep", sleep)
    path = tmp_path / "run.events"
    CliRunner().invoke(main, ["web", "--master", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--events", str(path)])
    assert all(pause <= 1.0 for pause in pauses)
    events = list(read_file(str(path)))
    assert sum(event["kind"] == "sample" for event in events) == 4
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_a_page_without_a_master_says_so_once():
    command = [sys.executable, "-m", "pccl", "web", "--master", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--interval", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as web:
        assert web.stdout is not None
        assert web.stderr is not None
        try:
            assert web.stdout.readline().startswith("http://127.0.0.1:")
            assert "no master answers at 127.0.0.1:1" in (line := web.stderr.readline())
            assert line.endswith(": asking again\n")
        finally:
            web.kill()


@pytest.mark.timeout(90)
def test_a_master_with_a_page_takes_it_along_when_it_ends():
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "pccl", "master", "--listen", f"127.0.0.1:{port}", "--web", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master:
        try:
            assert master.stdout is not None
            assert "listening on" in master.stdout.readline()
            url = urlsplit(master.stdout.readline().strip())
            connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=PATIENCE)
            connection.request("GET", f"/events?{url.query}")
            assert json.load(connection.getresponse())["events"][0]["kind"] == "master"
        finally:
            master.terminate()
        assert master.stdout.read() == ""  # at its end: the page has ended, too


@pytest.mark.timeout(60)
def test_a_master_in_the_background_with_a_page(tmp_path):
    """The command returns, and the page ends with the master."""
    (port,) = free_ports(1)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pccl", "master", "--listen", f"127.0.0.1:{port}", "--web", "127.0.0.1:0", "--background"]
    assert "needs --log" in subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False).stderr
    command += ["--until-empty", "2", "--log", str(log)]
    assert "listening on" in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE).stdout
    limit = time.monotonic() + PATIENCE
    while "http://127.0.0.1" not in log.read_text():
        assert time.monotonic() < limit
        time.sleep(0.1)


@pytest.mark.timeout(60)
def test_a_browser_begins_anew_with_a_server_that_was_restarted():
    (port,) = free_ports(1)

    def serve(name: str, count: int) -> Page:
        log = Log()
        log.add([{"at": 1.0, "kind": "master", "answers": False, "text": name}] * count)
        made = Page(("127.0.0.1", port), log, lambda: (b"", ""), TOKEN)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        return made

    with browser_page() as (shown, problems):
        first = serve("the first", 5)
        shown.goto(first.url)
        shown.wait_for_selector("#finding >> text=the first")
        first.shutdown()
        first.server_close()
        second = serve("the second", 9)
        first.token = "gone"  # its threads live on, and the browser keeps its connection
        first.log.add([{"at": 2.0, "kind": "master", "answers": True, "text": ""}])  # ends the request that waits
        shown.wait_for_selector("#finding >> text=the second")
        second.shutdown()
        second.server_close()
        assert shown.locator("#events li").count() == 9
        assert problems == []


@pytest.mark.timeout(120)
def test_a_browser_shows_findings_and_losses(tmp_path):
    path, log, recorder = tmp_path / "run.events", Log(), Recorder()
    begin = time.time()
    with create_file(str(path)) as log.file:
        for second in range(30):
            members = [
                member(number, state_revision=7, state_hash="ab" * 16, state_replaced=number == 4)
                for number in range(1, 5)
                if number != 3 or second < 10
            ]
            findings = (straggler(member(2)),) if second >= 20 else ()
            answer = told(*members, epoch=1 + (second >= 10), findings=findings)
            if second >= 10:
                answer = replace(answer, departures=(departure(3, LossReason.DIED, "its connection ended", second - 9.5),))
            log.add(recorder.observe(begin + second, replace(answer, joiners=(joiner(second * 10**8, float(second)),))))
    with browser_page() as (shown, problems), Command("replay", str(path)) as replay:
        shown.goto(replay.url)
        shown.wait_for_selector("#members tr:nth-child(4)")
        assert shown.inner_text("#state").startswith("3 members")
        assert shown.inner_text("#finding") == "it is late"
        assert "host-2" in shown.inner_text("tr.named")
        went = "host-3 (00000003, rank 0) was lost (died: its connection ended)"
        assert any(went in one for one in shown.locator("#events li").all_inner_texts())
        assert shown.locator("td.differs").all_inner_texts() == ["7 abababab"]
        assert "was replaced" in (shown.locator("td.differs").get_attribute("title") or "")
        assert shown.inner_text("#joiners li").startswith("host-9 (00000009) copies the state: 2.9 GB of 4.0 GB, about 11 s left")
        assert "token" not in shown.url
        line = shown.locator("#line")
        box = line.bounding_box()
        assert box is not None
        line.click(position={"x": 160, "y": 5})  # the beginning: the third was there, and nothing was found
        assert shown.inner_text("#state").startswith("4 members")
        assert shown.inner_text("#finding") == "Nothing slows operations down."
        assert problems == []


@pytest.mark.timeout(120)
def test_long_names_leave_room_for_what_they_name(tmp_path):
    path, log, recorder = tmp_path / "run.events", Log(), Recorder()
    domain = ".us-west-2.compute.internal"
    names = [*(f"ip-10-20-30-{number}{domain}" for number in range(1, 8)), f"{'x' * 40}-8{domain}"]
    with create_file(str(path)) as log.file:
        members = [replace(member(number, state_revision=7), name=name) for number, name in enumerate(names, 1)]
        log.add(recorder.observe(time.time(), told(*members)))
    with browser_page() as (shown, problems), Command("replay", str(path)) as replay:
        shown.set_viewport_size({"width": 1280, "height": 800})
        shown.goto(replay.url)
        shown.wait_for_selector("#members tr:nth-child(9)")
        assert shown.locator("#members td:nth-child(2)").all_inner_texts()[6:] == ["ip-10-20-30-7", f"{'x' * 8}…{'x' * 7}-8"]
        assert names[6] in (shown.locator("#members tr").nth(7).get_attribute("title") or "")
        assert shown.evaluate("(wide => wide.scrollWidth <= wide.clientWidth)(document.querySelector('#members').parentElement)")
        inside = "const ring = document.querySelector('#ring').getBoundingClientRect(); "
        inside += "return [...document.querySelectorAll('#ring text')].every(one => "
        inside += "(box => ring.left <= box.left && box.right <= ring.right)(one.getBoundingClientRect()))"
        assert shown.evaluate(f"() => {{ {inside} }}")
        shown.mouse.move(
            *shown.evaluate("(box => [box.left + 9, box.top + 30])(document.querySelector('#line').getBoundingClientRect())")
        )
        assert shown.get_attribute("#line", "title") == f"{names[0]} (00000001)"
        assert problems == []


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("127.0.0.1:99999", "Invalid value for --web: address '127.0.0.1:99999' has the invalid port"),
        ("0.0.0.0:8080", "--web 0.0.0.0:8080 is reached from other hosts"),
    ],
)
def test_a_master_with_a_page_that_cannot_be_does_not_begin(listen: str, words: str):
    result = CliRunner().invoke(main, ["master", "--listen", "127.0.0.1:1", "--web", listen])
    assert result.exit_code == 2
    assert words in result.output
