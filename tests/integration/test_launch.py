"""`pccl launch`: what its peers get, what it prints, how it ends, and that nothing outlives it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from launched import EXAMPLES, Launched
from peers import ENVIRONMENT, until
from performers import PATIENCE, secrets_of

import pccl
from pccl._core.address import parse_endpoint
from pccl._run import keys as _keys
from pccl._run.own_keys import why_plain
from pccl._watch.diagnosis import diagnose_run

pytest.importorskip("click")

from pccl.cli.launch import Printer

LAUNCH = [sys.executable, "-m", "pccl", "launch"]


@pytest.fixture
def launch(tmp_path):
    """Starts it with a program, given as text; ends it and all that it has started."""
    with contextlib.ExitStack() as stack:

        def start(program, *arguments, options=("--nproc", "3")):
            path = tmp_path / "program.py"
            path.write_text("import os, signal, sys, time\nnumber = int(os.environ['PCCL_PEER'])\n" + textwrap.dedent(program))
            return stack.enter_context(Launched([*LAUNCH, *options, str(path), *arguments]))

        yield start


def test_options_for_the_members_reach_the_peers(launch):
    launched = launch(
        "print(*(os.environ[f'PCCL_{name}'] for name in ('INTERFACE', 'MIN_MEMBERS', 'MAX_MEMBERS')))",
        options=("--nproc", "1", "--interface", "lo", "--min-members", "1", "--max-members", "4"),
    )
    launched.expect(r"\[0\] lo 1 4")


@pytest.mark.parametrize(
    "program", [["-c", "import sys; print(sys.argv[1:])"], ["-X", "dev", "PATH"], ["-O", "PATH"]], ids=lambda program: program[0]
)
def test_options_of_python_after_two_dashes(program, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys\nprint(sys.argv[1:])")
    words = [str(path) if word == "PATH" else word for word in program]
    with Launched([*LAUNCH, "--nproc", "1", "--", *words, "--restart"]) as launched:
        assert launched.end() == 0
        assert "[0] ['--restart']\n" in launched.lines


def test_restart_may_stand_behind_a_flag(launch):
    launched = launch("print('insecure', os.environ['PCCL_INSECURE'])", options=("--insecure", "--restart", "--nproc", "1"))
    assert launched.end() == 0
    assert "[0] insecure 1\n" in launched.lines


def test_a_minimum_above_the_maximum_is_refused(launch):
    launched = launch("", options=("--min-members", "3", "--max-members", "2"))
    launched.expect("--min-members 3 is more than --max-members 2")
    assert launched.end() == 2


def pids(launched, count):
    """Of the peers, which print them, by number."""
    found = {int(match[1]): int(match[2]) for match in launched.expect(r"\[(\d)\] pid (\d+)", count)}
    assert len(found) == count
    return [found[number] for number in sorted(found)]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_arguments_environment_and_output(launch):
    program = """
        print(sys.argv[1:], os.environ["PCCL_PEERS"], os.environ["PCCL_MASTER"].partition(":")[0], "PCCL_JOIN" in os.environ)
        sys.stderr.write("one\\n\\ntwo")
    """
    one = launch(program, "--", "--method", "x", "--", "--help")
    assert one.end() == 0
    text = "".join(one.lines)
    for number in range(3):
        assert f"[{number}] ['--method', 'x', '--', '--help'] 3 127.0.0.1 False\n" in text
        assert f"[{number}] one\n" in text
        assert f"[{number}] two\n" in text
    assert "pccl launch: the master is 127.0.0.1:" in text


def test_peers_form_a_run_and_one_may_die(launch):
    program = """
        import numpy as np, pccl
        with pccl.Communicator(os.environ["PCCL_MASTER"]) as comm:
            comm.connect()
            comm.wait_for_peers(int(os.environ["PCCL_PEERS"]), timeout=60)
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            value = np.ones(3)
            while comm.world_size == 3:
                try:
                    comm.all_reduce(value, op=pccl.ReduceOp.SUM)
                except pccl.PeerLostError:
                    pass
            comm.barrier()
            print("world", comm.world_size)
    """
    one = launch(program)
    assert one.end() == 0
    text = "".join(one.lines)
    assert "pccl launch: peer 1 was killed by SIGKILL\n" in text
    assert "[0] world 2\n" in text
    assert "[2] world 2\n" in text


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("sys.exit(number * 3)", (3, 6)),
        ("sys.exit(75)", 75),
        ("os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM),
        ("number == 1 and os.kill(os.getpid(), signal.SIGSEGV)", 0),
    ],
)
def test_status(launch, program, status):
    assert launch(program).end() in (status if isinstance(status, tuple) else (status,))


def test_a_peer_that_has_left_is_replaced_and_has_not_failed(launch, tmp_path):
    program = """
        if number == 1:
            if os.environ.get("PCCL_JOIN") == "1":
                open(sys.argv[1], "w")
            import pccl
            raise pccl.Left
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.02)
    """
    one = launch(program, str(tmp_path / "there"), options=("--nproc", "2", "--restart", "1"))
    assert one.end() == 0
    text = "".join(one.lines)
    assert text.count("peer 1 has left; restarting it") == 1
    assert text.count("peer 1 has left") == 2


@pytest.mark.parametrize("restart", [["--restart", "1"], ["--restart=1"], ["--restart"]])
def test_a_peer_is_started_anew(launch, tmp_path, restart):
    program = """
        print("begins", os.environ.get("PCCL_JOIN"))
        if number == 1:
            if os.environ.get("PCCL_JOIN") != "1":
                os.kill(os.getpid(), signal.SIGKILL)
            open(sys.argv[1], "w")
        else:
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.02)
    """
    one = launch(program, str(tmp_path / "there"), options=("--nproc", "2", *restart))
    assert one.end() == 0
    text = "".join(one.lines)
    assert text.count("begins None") == 2
    assert text.count("[1] begins 1") == 1
    assert "peer 1 was killed by SIGKILL; restarting it" in text


def test_a_replacement_that_comes_too_late_is_no_failure(launch, tmp_path):
    program = """
        import pccl
        here = sys.argv[1]
        if os.environ.get("PCCL_JOIN") == "1":
            open(here, "w")
            while os.path.exists(here):
                time.sleep(0.02)
            try:
                pccl.Communicator(os.environ["PCCL_MASTER"]).connect(n_attempts=1)
            except pccl.ConnectError:
                sys.exit(3)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.path.exists(here):
            time.sleep(0.02)
        os.remove(here)
    """
    one = launch(program, str(tmp_path / "there"), options=("--nproc", "2", "--restart", "1"))
    assert one.end() == 0
    assert "pccl launch: peer 1 could not join the run" in "".join(one.lines)


def test_a_replacement_that_fails_after_it_has_joined_is_a_failure(launch, tmp_path):
    """Also if it could not join at first."""
    program = """
        import pccl
        begun, joined = sys.argv[1:]
        comm = pccl.Communicator(os.environ["PCCL_MASTER"])
        if os.environ.get("PCCL_JOIN") == "1":
            while not os.path.exists(begun):
                time.sleep(0.02)
            try:
                pccl.Communicator("127.0.0.1:9").connect(n_attempts=1)
            except pccl.ConnectError:
                comm.connect()
                open(joined, "w")
                os._exit(7)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.connect()
        open(begun, "w")
        while not os.path.exists(joined):
            comm.update_topology()
            time.sleep(0.02)
    """
    one = launch(program, str(tmp_path / "begun"), str(tmp_path / "joined"), options=("--nproc", "2", "--restart", "1"))
    assert one.end() == 7
    assert "pccl launch: peer 1 failed with status 7" in "".join(one.lines)


def test_restarts_end(launch):
    program = """
        print("begins")
        if number == 1:
            sys.exit(5)
        sys.stdin.read()
        time.sleep(60)
    """
    one = launch(program, options=("--nproc", "2", "--restart", "2"))
    one.expect(r"\[1\] begins", 3)
    one.expect(r"peer 1 failed with status 5$")
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(launch, number):
    program = """
        def end(*_):
            print("ends", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGTERM, end)
        print("pid", os.getpid())
        while True:
            time.sleep(60)
    """
    one = launch(program)
    found = pids(one, 3)
    one.process.send_signal(number)
    assert one.end() == 128 + number
    assert "".join(one.lines).count("] ends\n") == 3
    assert all(map(gone, found))


STUBBORN = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("pid", os.getpid())
    while True:
        time.sleep(60)
"""


def test_a_second_signal_kills(launch):
    one = launch(STUBBORN)
    found = pids(one, 3)
    one.process.send_signal(signal.SIGINT)
    while one.process.poll() is None and not all(map(gone, found)):
        one.process.send_signal(signal.SIGINT)  # two that come together may be one
    assert one.end() in (128 + signal.SIGINT, -signal.SIGINT)  # the last may come when all is done
    assert all(map(gone, found))


def test_peers_die_with_it(launch):
    one = launch(STUBBORN)
    found = pids(one, 3)
    one.process.kill()
    one.end(PATIENCE)
    while not all(map(gone, found)):
        pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["--nproc", "0", "x.py"], "range"),
        (["--restart", "-1", "x.py"], "range"),
        (["--restart"], "Missing argument"),
        (["--master", "nowhere", __file__], "nowhere"),
        (["--keys", "run.master", "--insecure", __file__], "contradict"),
        (["--keys", "missing", __file__], "missing: No such file"),
        (["--nprocs", "2", "x.py"], "No such option"),
        (["--min-members", "2", "-x", "x.py"], "No such option"),
    ],
)
def test_wrong_arguments(arguments, words):
    with Launched([*LAUNCH, *arguments]) as one:
        assert one.end() == 2
        assert words in "".join(one.lines)


@pytest.mark.parametrize("method", ["data-parallel", "diloco", "async", "streaming", "sparse"])
def test_the_example_trains(method):
    """All peers end with the same model."""
    arguments = ["--steps", "40", "--sync-every", "10", "--width", "16", "--layers", "1", "--batch", "4"]
    command = [*LAUNCH, "--nproc", "2", str(EXAMPLES / "diloco.py"), "--", "--method", method, *arguments]
    with Launched(command) as one:
        assert one.end(2 * PATIENCE) == 0, one.lines
    last = [[line for line in one.lines if line.startswith(f"[{number}] outer step")][-1] for number in range(2)]
    assert len({line.partition("validation")[2] for line in last}) == 1, one.lines


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stopped_reader_stops_nobody(tmp_path, stream, monkeypatch):
    """The peers print far more than a pipe and the command's own memory hold, and nobody reads a byte of it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, sys\n"
        f"for _ in range(24): sys.{stream}.write('x' * ((1 << 20) - 1) + '\\n')\n"
        f"pathlib.Path({str(tmp_path)!r}, 'done' + os.environ['PCCL_PEER']).touch()\n"
        "import time\n"
        "while True: time.sleep(1)\n"
    )
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: subprocess.PIPE}
    with subprocess.Popen([*LAUNCH, "--nproc", "2", str(program)], **pipes) as command:
        try:
            until(lambda: all((tmp_path / f"done{number}").exists() for number in range(2)), "the peers wait for a reader")
            command.send_signal(signal.SIGTERM)
            assert command.wait(PATIENCE) == 128 + signal.SIGTERM
        finally:
            command.kill()


def test_a_peer_that_never_stops_printing_keeps_nobody_waiting(tmp_path):
    """Peer 1 ends, and so does the command at Ctrl-C, although there is always more to read from peer 0."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib\n"
        "for line in range(1 << 40 if os.environ['PCCL_PEER'] == '0' else 1):\n"
        f"    if line == 1 << 16: pathlib.Path({str(tmp_path)!r}, 'prints').touch()\n"
        "    print('x' * 100)\n"
    )
    with subprocess.Popen([*LAUNCH, "--nproc", "2", str(program)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
        try:
            until((tmp_path / "prints").exists)
            one.send_signal(signal.SIGINT)
            assert one.wait(PATIENCE) == 128 + signal.SIGINT
        finally:
            one.kill()


def test_what_a_peer_leaves_behind_may_go_on_printing(tmp_path):
    """The command ends with its peers, whatever another process prints to their output."""
    program, pid = tmp_path / "program.py", tmp_path / "pid"
    program.write_text(
        "import pathlib, subprocess, sys\n"
        "left = subprocess.Popen([sys.executable, '-c', 'while True: print(1)'], start_new_session=True)\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(left.pid))\n"
    )
    try:
        with subprocess.Popen([*LAUNCH, "--nproc", "1", str(program)], stdout=subprocess.DEVNULL) as one:
            assert one.wait(PATIENCE) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_status_counts_although_the_caller_ignores_its_children(launch, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(3)")
    words = [*LAUNCH, "--nproc", "1", str(program)]
    assert subprocess.run(["sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *words], timeout=PATIENCE, check=False).returncode == 3


def test_carriage_returns_end_lines(launch):
    one = launch("sys.stdout.write('\\rstep 1\\rstep 2\\r\\n\\r\\n\\r\\rstep 3')", options=("--nproc", "1"))
    assert one.end() == 0
    assert [line for line in one.lines if line.startswith("[0]")] == ["[0] step 1\n", "[0] step 2\n", "[0] \n", "[0] step 3\n"]


def test_all_lines_come_in_order(launch):
    program = """
        for line in range(20000):
            print("line", line, "x" * 100)
    """
    one = launch(program, options=("--nproc", "1"))
    assert one.end() == 0
    assert [line.split()[2] for line in one.lines if line.startswith("[0] line")] == [str(number) for number in range(20000)]


def test_lines_that_were_dropped_are_counted(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr("pccl.cli.launch.ROOM_BYTES", 1 << 17)
    with open(writer, "w") as target:
        printer = Printer(target)
        for _ in range(16):
            printer.print(b"x" * ((1 << 15) - 1) + b"\n")
        text = b""
        while len(text) < 1 << 17:  # then there is room again
            text += os.read(reader, 1 << 15)
        printer.print(b"the last\n")
        while not text.endswith(b"the last\n"):
            text += os.read(reader, 1 << 15)
        printer.close()
    os.close(reader)
    dropped, last = text.decode().splitlines()[-2:]
    assert re.fullmatch(r"pccl launch: \d+ lines dropped: the reader of .* is too slow", dropped)
    assert last == "the last"


# ---- keys ----

JOINS = """
    import pccl
    with pccl.Communicator(os.environ["PCCL_MASTER"]) as comm:
        comm.connect()
        print("pid", os.getpid(), "keys", os.environ.get("PCCL_KEYS"))
        while True:
            comm.are_peers_pending() and comm.update_topology()
            time.sleep(0.05)
"""


@pytest.mark.skipif(why_plain() != "", reason="this build has no encryption")
@pytest.mark.plain("the run makes its own keys")
def test_a_run_has_keys_of_its_own(launch, tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path))
    one = launch(JOINS, options=("--nproc", "2", "--restart", "1"))
    [kept] = [match[1] for match in one.expect(r"the keys are in (\S+)")]
    [address] = [match[1] for match in one.expect(r"the master is (\S+)")]
    peers = {int(match[1]): match[2] for match in one.expect(r"\] pid (\d+) keys (\S+)", 2)}
    assert set(peers.values()) == {kept}
    folder = Path(kept).parent
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {"run.master": 0o600, "run.peer": 0o600}

    hidden = [secret.encode() for secret in secrets_of(folder / "run.master")]
    for pid in (one.process.pid, *peers):
        shown = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        assert not any(secret in text for secret in hidden for text in shown)

    stranger = _keys.write_files(tmp_path / "stranger", _keys.new_keys())[1]
    for keys in (None, stranger):
        with pccl.Communicator(address, keys=keys) as comm, pytest.raises(pccl.PCCLError):
            comm.connect(1, timeout=PATIENCE)
    assert len(diagnose_run(parse_endpoint(address), keys=kept).members) == 2

    os.kill(next(iter(peers)), signal.SIGKILL)
    one.expect(r"\] pid (\d+) keys " + re.escape(kept))  # the new one finds them
    one.process.send_signal(signal.SIGINT)
    assert one.end() == 128 + signal.SIGINT
    assert not folder.exists()
    assert not any(secret.decode() in "".join(one.lines) for secret in hidden)


SHOWS = "print('keys', os.environ.get('PCCL_KEYS'), 'insecure', os.environ.get('PCCL_INSECURE'))"


@pytest.mark.skipif(why_plain() != "", reason="this build has no encryption")
@pytest.mark.parametrize("way", ["--keys", "PCCL_KEYS"])
def test_keys_that_are_given_are_used(launch, tmp_path, monkeypatch, way):
    (tmp_path / "empty").mkdir()
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path / "empty"))
    master, peer = _keys.write_files(tmp_path / "run", _keys.new_keys())
    if way == "PCCL_KEYS":
        monkeypatch.setitem(ENVIRONMENT, "PCCL_KEYS", str(master))
    one = launch(SHOWS, options=("--nproc", "1", *(["--keys", str(master)] if way == "--keys" else [])))
    one.expect(rf"\[0\] keys {re.escape(str(master))} insecure None")
    assert one.end() == 0
    assert not list((tmp_path / "empty").iterdir())
    with Launched([*LAUNCH, "--keys", str(peer), str(tmp_path / "program.py")]) as refused:
        assert refused.end() == 2
        assert "for peers: a master needs the other file" in "".join(refused.lines)


def test_a_run_without_keys(launch, tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path / "empty"))
    one = launch(SHOWS, options=("--nproc", "1", "--insecure"))
    one.expect("pccl launch: the run is not encrypted: PCCL_INSECURE=1")
    one.expect(r"\[0\] keys None insecure 1")
    assert one.end() == 0
