"""MasterNode, and the master as a program: ports, ends, exit status."""

import contextlib
import errno
import gc
import os
import re
import resource
import signal
import socket
import string
import struct
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pccl
import pccl.master
from pccl import MasterNode, PCCLError, Result
from pccl._core import address as _address
from pccl._pccl import C
from pccl._run import keys as _keys
from pccl._run import master as _master
from pccl.lab.ports import free_ports
from pccl_command import native_master

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(pccl.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
ENVIRONMENT.pop("PCCL_LOG_LEVEL", None)


def start(*command: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **environment},
    )


def port_of(process: subprocess.Popen) -> int:
    """From the line that a master prints once it listens."""
    line = process.stdout.readline()
    assert "listening on" in line, line + process.stderr.read()
    return int(line.rpartition(":")[2])


def can_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_any_free_port():
    with MasterNode("127.0.0.1:0") as master:
        assert master.port > 0
        assert can_connect(master.port)
        assert repr(master) == f"<MasterNode 127.0.0.1:{master.port}: running>"
    assert "closed" in repr(master)
    master.close()


def test_a_master_runs_once():
    with MasterNode("127.0.0.1:0") as master:
        with pytest.raises(PCCLError) as caught:
            master.run()
        assert caught.value.result is Result.INVALID_USAGE
        master.interrupt()
        master.interrupt()
        master.wait(timeout=30)
        master.wait(timeout=30)
        with pytest.raises(PCCLError):
            master.run()


def test_before_run():
    master = MasterNode("127.0.0.1:48148")
    assert master.port == 48148
    assert "not run" in repr(master)
    for call in (master.interrupt, master.wait):
        with pytest.raises(PCCLError) as caught:
            call()
        assert caught.value.result is Result.INVALID_USAGE
    del master  # just freed


def test_waiting_has_a_timeout():
    with MasterNode("127.0.0.1:0") as master:
        begin = time.monotonic()
        with pytest.raises(pccl.PCCLTimeoutError):
            master.wait(timeout=0.15)
        assert time.monotonic() - begin >= 0.15


@pytest.mark.parametrize("limit", [0.01, 0, -1, 100_000, 1e9, float("nan")])
def test_a_heartbeat_limit_out_of_range(limit):
    with pytest.raises(ValueError, match=r"heartbeat_limit must be from 0\.1 to 3600 seconds"):
        MasterNode("127.0.0.1:0", heartbeat_limit=limit)


def test_the_last_reference_waits_for_the_end():
    master = MasterNode("127.0.0.1:0")
    master.run()
    port = master.port
    pointer = master._pointer  # reaches the C object without keeping the Python one alive
    served = []

    def interrupt_later():
        time.sleep(1.0)
        served.append(can_connect(port))
        C.pcclInterruptMaster(pointer)

    thread = threading.Thread(target=interrupt_later)
    thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)  # which must not end the wait
        del master
        gc.collect()
    assert served == [True]  # so it was not over before
    thread.join()
    assert not can_connect(port)


AT_THE_END = {
    "a local of main": "def main():\n    m = make()\nmain()\nprint('main is over')",
    "a global": "m = make()",
    "a global, after an error": "m = make()\nraise SystemExit(3)",
}


@pytest.mark.parametrize("name", AT_THE_END)
def test_a_script_goes_on_serving_and_ctrl_c_ends_it(name):
    code = (
        "import pccl\n"
        "serve = pccl.MasterNode._serve_to_the_end\n"
        "def note(self):\n"
        "    print('nobody needs it any more')\n"
        "    serve(self)\n"
        "pccl.MasterNode._serve_to_the_end = note\n"
        "def make():\n"
        "    m = pccl.MasterNode('127.0.0.1:0')\n"
        "    m.run()\n"
        "    print(f'listening on :{m.port}')\n"
        "    return m\n"
    ) + AT_THE_END[name]
    process = start("-c", code)
    port = port_of(process)
    assert "nobody needs it" in process.stdout.readline()
    time.sleep(0.3)
    assert process.poll() is None
    assert can_connect(port)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == (3 if "error" in name else 0), err
    assert "main is over" in out or "main" not in name
    assert "Traceback" not in err


def test_a_shell_that_is_left_says_what_it_waits_for():
    code = "import pccl; master = pccl.MasterNode('127.0.0.1:0'); master.run()"
    shell = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PCCL_LOG_LEVEL": "ERR"},
    )
    assert shell.stderr.readline() == "a pccl master is still running; press Ctrl-C to stop it\n"
    shell.send_signal(signal.SIGINT)
    assert shell.communicate(timeout=30) == ("", "")
    assert shell.returncode == 0


@pytest.mark.parametrize("end", ["del master", ""], ids=["dropped", "at exit"])
def test_a_master_that_nobody_closes_is_warned_of(end):
    code = "import pccl; master = pccl.MasterNode('127.0.0.1:0'); master.run(); "
    code += f"print(f'listening on :{{master.port}}', flush=True)\n{end}"
    process = start("-W", "always", "-c", code)
    port = port_of(process)
    lines = iter(process.stderr.readline, "")
    warned = next(line for line in lines if "ResourceWarning" in line)
    assert f"the master at 127.0.0.1:{port} is still serving" in warned
    assert "call close(), or use a with statement" in warned
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_master_that_was_stopped_is_not_warned_of():
    code = "import pccl; m = pccl.MasterNode('127.0.0.1:0'); m.run(); m.interrupt(); del m; pccl.MasterNode('127.0.0.1:0')"
    _, err = start("-W", "always", "-c", code).communicate(timeout=60)
    assert "ResourceWarning" not in err


def test_a_forked_child_leaves_the_master_alone():
    code = (
        "import os, pccl\n"
        "m = pccl.MasterNode('127.0.0.1:0')\n"
        "m.run()\n"
        "c = pccl.Communicator(f'127.0.0.1:{m.port}')\n"
        "c.connect(1)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    raise SystemExit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "c.update_topology(timeout=30)\n"
        "c.close()\n"
        "m.close()\n"
        "print('fine')\n"
    )
    out, err = start("-c", code).communicate(timeout=60)
    assert out.strip() == "fine", err


PROGRAMS = {
    "pccl_master": ["-m", "pccl.master", "--listen-address", "127.0.0.1:0"],
    "pccl master": ["-m", "pccl.cli", "master", "--listen", "127.0.0.1:0", "--heartbeat-limit", "2"],
}


ENDS, DETACHES = "stopped, 1 peer: the run has ended", "stopped, 1 peer: the run waits for another master"

ENDINGS = [
    (signal.SIGINT, "", ENDS),
    (signal.SIGINT, "detach", ENDS),
    (signal.SIGTERM, "", DETACHES),
    (signal.SIGTERM, "detach", DETACHES),
    (signal.SIGTERM, "end", ENDS),
]


@pytest.mark.parametrize(("number", "choice", "words"), ENDINGS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_end_with_status_0(name, number, choice, words):
    process = start(*PROGRAMS[name], PCCL_MASTER_ON_SIGTERM=choice)
    port = port_of(process)
    with pccl.Communicator(f"127.0.0.1:{port}") as comm:
        comm.connect(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert not can_connect(port)
    assert words in err


def test_the_option_beats_the_environment():
    process = start(*PROGRAMS["pccl master"], "--on-sigterm", "end", PCCL_MASTER_ON_SIGTERM="detach")
    with pccl.Communicator(f"127.0.0.1:{port_of(process)}") as comm:
        comm.connect(1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert ENDS in err


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unknown_choice_is_an_error(name):
    process = start(*PROGRAMS[name], PCCL_MASTER_ON_SIGTERM="nonsense")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "PCCL_MASTER_ON_SIGTERM=nonsense is neither detach nor end" in err


def test_a_master_in_this_process_detaches():
    """Its peer waits for the next one at the address; the one that is interrupted takes it along."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pccl.Communicator(address) as comm:
        first = MasterNode(address)
        with pytest.raises(PCCLError) as caught:
            first.detach()
        assert caught.value.result is Result.INVALID_USAGE
        first.run()
        comm.connect(1)
        first.detach()
        first.interrupt()  # the first call counts
        first.close()
        with MasterNode(address):
            comm.update_topology(timeout=30)
        with pytest.raises(PCCLError) as caught:
            comm.update_topology(timeout=30)
        assert caught.value.result is Result.MASTER_CONNECTION_FAILED


# ---- what it logs ----


def test_what_a_master_logs_unless_told_otherwise():
    """Who joins, who goes and why, and each epoch: with date and time, and no line about strangers."""
    process = start(*PROGRAMS["pccl master"])
    address = f"127.0.0.1:{port_of(process)}"
    with pccl.Communicator(address) as first:
        first.connect(2)
        with pccl.Communicator(address) as second:
            with ThreadPoolExecutor(1) as pool:
                joined = pool.submit(second.connect, 2)
                while first.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
                    first.update_topology(timeout=30)
                joined.result()
            names = [
                f"peer {comm.name} ({comm.uuid.hex[:8]}, join {place}) at 127.0.0.1:"
                for place, comm in enumerate((first, second), 1)
            ]
        first.update_topology(timeout=30)
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as stranger:
            stranger.sendall(hello(version=1))
            stranger.recv(1000)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    lines = [line for line in err.splitlines() if re.search("pccl (NOTICE|WARN)", line)]
    assert len(lines) == len(err.splitlines()), err
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} pccl (NOTICE|WARN) \[\d+\] master: ", line) for line in lines)
    order = [f"admitted {names[0]}", "epoch 1 (update): 1 peer", f"admitted {names[1]}", "epoch 2 (update): 2 peers"]
    order += [f"left {names[1]}".replace("join", "rank 1, join"), "epoch 3 (loss): 1 peer", "refused a peer", "stopped, 1 peer"]
    assert [next((part for part in order if part in line), line) for line in lines] == order
    assert lines[4].endswith(": its program closed the communicator")


def hello(version: int) -> bytes:
    body = struct.pack("<H16sIIHB", version, os.urandom(16), 0, 4, 1, 1)
    return struct.pack("<I2sHQQQ", len(body), b"PC", 1, 0, 0, 0) + body


def test_strangers_do_not_fill_the_log():
    process = start(*PROGRAMS["pccl master"], PCCL_LOG_LEVEL="warn")
    port = port_of(process)
    for _ in range(2000):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(hello(version=1))
            stranger.recv(1000)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "refused a peer: the master speaks version" in err
    assert len(err) < 50_000


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_say_what_is_wrong(name):
    with MasterNode("127.0.0.1:0") as master:
        taken = f"127.0.0.1:{master.port}"
        process = start(*(part.replace("127.0.0.1:0", taken) for part in PROGRAMS[name]))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert taken in err
    assert "Traceback" not in err


# ---- the list of masters ----

PLACES = [
    ("127.0.0.1:5001", "127.0.0.1:5001,127.0.0.1:5002", 0),
    ("127.0.0.1:5002", "127.0.0.1:5001,127.0.0.1:5002", 1),
    ("localhost:5002", "127.0.0.1:5001,127.0.0.1:5002", 1),
    ("127.0.0.1:5002", "203.0.113.7:5001,localhost:5002", 1),
    ("0.0.0.0:5001", "203.0.113.7:5001,127.0.0.1:5001", 1),
    ("0.0.0.0:5001", "127.0.0.1:5001,203.0.113.7:5001", 0),
    ("0.0.0.0:5001", "127.0.0.1:5001,127.0.0.1:5002", 0),
    ("[::]:5001", "[::1]:5001,203.0.113.7:5001", 0),
]

NO_PLACES = [
    ("127.0.0.1:5003", "127.0.0.1:5001,127.0.0.1:5002", "do not contain 127.0.0.1:5003"),
    ("127.0.0.1:5001", "203.0.113.7:5001", "do not contain"),
    ("0.0.0.0:5001", "203.0.113.7:5001,203.0.113.8:5001", "do not contain 0.0.0.0:5001"),
    ("0.0.0.0:5001", "127.0.0.1:5001,127.0.0.2:5001", "127.0.0.1:5001 and 127.0.0.2:5001 are this machine"),
    ("127.0.0.1:0", "127.0.0.1:5001,127.0.0.1:5002", "not on port 0"),
    ("127.0.0.1:5001", "127.0.0.1:5001,127.0.0.1:5001", "each once"),
    ("127.0.0.1:5001", "127.0.0.1:5001,127.0.0.1:0", "port 0"),
    ("127.0.0.1:5001", "127.0.0.1:5001,", "has an entry without host and port"),
    ("127.0.0.1:5001", "", "no port"),
]


@pytest.fixture
def told(monkeypatch):
    """What the library was told of lists of masters: how many, and which one this is."""
    told = []
    call = _master.call

    def note(handle, function, *arguments, **named):
        if function == "pccl_ext_master_configure":
            told.append((arguments[0].master_count, arguments[0].self))
        call(handle, function, *arguments, **named)

    monkeypatch.setattr(_master, "call", note)
    return told


@pytest.mark.parametrize(("listen", "masters", "place"), PLACES)
def test_a_master_finds_itself_in_the_list(listen, masters, place, told):
    MasterNode(listen, masters=masters)
    assert told == [(2, place)]


def test_a_master_behind_another_address_is_told_which_one_it_is(told):
    MasterNode("0.0.0.0:5001", masters="203.0.113.7:5001,203.0.113.8:5001", advertise="203.0.113.8:5001")
    assert told == [(2, 1)]


@pytest.mark.parametrize("masters", ["203.0.113.7:5001", None])
def test_what_a_master_advertises_is_in_the_list(masters):
    with pytest.raises(ValueError, match=r"do not contain 203.0.113.8:5001, the address that this one advertises"):
        MasterNode("0.0.0.0:5001", masters=masters, advertise="203.0.113.8:5001")


@pytest.mark.parametrize(("listen", "masters", "words"), NO_PLACES)
def test_a_list_without_this_master_is_an_error(listen, masters, words):
    with pytest.raises((ValueError, AssertionError), match=words):
        MasterNode(listen, masters=masters)


WRONG_WORDS = [
    (("--listen", "48160"), "address '48160' has no host; write 0.0.0.0:48160"),
    (("--masters", ",,"), "--masters: the list of masters ',,' has an entry without host and port"),
    (("--masters", "127.0.0.1"), "--masters: address '127.0.0.1' has no port"),
    (
        ("--listen", "127.0.0.1:5001", "--masters", "127.0.0.1:5001,localhost:5001"),
        "entries 1 and 2 of the masters are both 127.0.0.1:5001; name each master once",
    ),
]


@pytest.mark.parametrize(("options", "words"), WRONG_WORDS)
def test_the_program_names_what_is_wrong(options, words):
    process = start("-m", "pccl.cli", "master", *options)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert words in errors


def test_the_help_shows_the_default_of_the_heartbeat_limit():
    out, _ = start("-m", "pccl.cli", "master", "--help").communicate(timeout=60)
    assert re.search(r"--heartbeat-limit.*\[default:\s+\(?PCCL_HEARTBEAT_LIMIT_MS,\s+or\s+5", out, re.DOTALL), out


def test_the_program_says_so():
    process = start("-m", "pccl.cli", "master", "--listen", "127.0.0.1:5003", "--masters", "127.0.0.1:5001,127.0.0.1:5002")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "do not contain 127.0.0.1:5003" in errors


def test_keys_that_cannot_be_read_say_nothing_of_the_port(tmp_path):
    keys = str(tmp_path / os.strerror(errno.EACCES))  # named like the reason for which a low port is refused
    for program in (["-m", "pccl.master"], ["-c", WITHOUT_NATIVE]):
        process = start(*program, "--listen", "127.0.0.1:80", "--keys", keys)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert keys in err
        assert "needs root" not in err


@pytest.mark.parametrize("option", ["--keys", "--cert"])
def test_bad_files_of_keys_are_wrong_options(tmp_path, option):
    (tmp_path / "bad").touch(mode=0o600)
    files = [option, str(tmp_path / "bad")]
    files += ["--key", files[1], "--ca", files[1]] * (option == "--cert")
    programs = (["-m", "pccl.master"], ["-c", WITHOUT_NATIVE])
    ended = [start(*program, "--listen", "127.0.0.1:0", *files) for program in programs]
    said = {process.communicate(timeout=60) for process in ended}
    assert [process.returncode for process in ended] == [2, 2]
    [(_, err)] = said
    assert f"in {tmp_path / 'bad'}: " in err


def test_keys_for_which_there_is_no_descriptor_are_no_wrong_options(tmp_path):
    subprocess.run([sys.executable, "-m", "pccl", "keys", str(tmp_path / "run")], check=True, capture_output=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(PCCLError, match="Too many open files") as caught:
            MasterNode("127.0.0.1:0", keys=str(tmp_path / "run.master")).run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.result is Result.INTERNAL_ERROR


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("extra", [(), ("--background",)])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1:48148"])
def test_a_wrong_address_is_a_wrong_option(name, extra, address):
    process = start(*PROGRAMS[name][:-1] if name == "pccl_master" else PROGRAMS[name][:-3], address, *extra)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert address in errors
    assert "Traceback" not in errors


def test_both_programs_have_the_same_options():
    programs = ["-m", "pccl.master"], ["-m", "pccl", "master"]
    texts = [start(*program, "--help").communicate(timeout=60)[0] for program in programs]
    assert texts[0].partition("Options:")[2] == texts[1].partition("Options:")[2] != ""


def test_a_port_without_the_right_to_it():
    error = PCCLError(Result.INTERNAL_ERROR, "pcclRunMaster", "the master could not be started: Permission denied")
    assert "needs root" in pccl.master._why(error, "0.0.0.0:80")
    assert "needs root" not in pccl.master._why(error, "0.0.0.0:4814")


# ---- the native program ----


def is_native(process: subprocess.Popen) -> bool:
    return os.readlink(f"/proc/{process.pid}/exe").endswith("/pccl/spawned_master")


def native_words(*arguments: str) -> list[str] | None:
    """What the native program is told, or None where `pccl.master` has to look at the arguments."""
    try:
        return native_master.native_arguments(arguments)[0]
    except (native_master.UnsureError, OSError):
        return None


NATIVE = {
    **PROGRAMS,
    "python -m pccl": ["-m", "pccl", "master", "--listen=127.0.0.1:0"],
    "a name": ["-m", "pccl", "master", "--listen", "localhost:0"],
    "IPv6": ["-m", "pccl", "master", "--listen", "[::1]:0", "--until-empty", "60"],
    "all options": [
        *("-m", "pccl", "master", "--masters", "localhost:LISTEN,203.0.113.7:1", "--advertise", "localhost:LISTEN"),
        *("--listen", "0.0.0.0:LISTEN", "--on-sigterm", "end", "--heartbeat-limit=1.5", "--until-empty", "60", "--insecure"),
    ],
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_program_serves(name):
    listen = str(free_ports(1)[0])
    process = start(*(word.replace("LISTEN", listen) for word in NATIVE[name]))
    port = port_of(process)
    assert is_native(process)
    with socket.create_connection(("::1" if name == "IPv6" else "127.0.0.1", port)):
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "stopped: no run was under way" in err


@pytest.mark.parametrize(("name", "own"), [("pccl-keys-x", True), ("keys", False), ("xpccl-keys-x", False)])
def test_only_a_folder_of_a_jobs_own_keys_is_removed(tmp_path, name, own):
    """Here the master cannot listen, since its keys are wrong."""
    folder = tmp_path / name
    folder.mkdir()
    for role in ("master", "peer"):
        (folder / f"run.{role}").touch(mode=0o600)
    command = [native_master.PROGRAM, "--listen", "127.0.0.1:0", "--keys", folder / "run.master", "--own-keys"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert folder.exists() != own
    assert own or sorted(path.name for path in folder.iterdir()) == ["run.master", "run.peer"]


@pytest.mark.skipif(not C.pccl_ext_has_tls(), reason="this build of pccl has no encryption")
def test_the_keys_of_a_job_go_with_a_master_that_cannot_print(tmp_path):
    folder = tmp_path / "pccl-keys-x"
    folder.mkdir()
    keys, _ = _keys.write_files(folder / "run", _keys.new_keys())
    with open("/dev/full", "w") as full:
        command = [native_master.PROGRAM, "--listen", "127.0.0.1:0", "--keys", keys, "--own-keys", "--leave"]
        assert subprocess.run(command, env=ENVIRONMENT, stdout=full, timeout=60).returncode == 0
    while folder.exists():
        time.sleep(0.01)


WITHOUT_NATIVE = (
    "import pccl_command, pccl_command.native_master as native, sys\n"
    "native.PROGRAM = '/nowhere/spawned_master'\n"
    "sys.argv[:1] = ['pccl', 'master']\n"
    "pccl_command.main()\n"
)


@pytest.mark.parametrize(("number", "words"), [(signal.SIGINT, ENDS), (signal.SIGTERM, DETACHES)])
def test_python_serves_without_the_native_program(number, words):
    process = start("-c", WITHOUT_NATIVE, "--listen", "127.0.0.1:0")
    port = port_of(process)
    assert not is_native(process)
    with pccl.Communicator(f"127.0.0.1:{port}") as comm:
        comm.connect(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert words in err


def test_both_say_the_same_of_an_address_in_use():
    programs = [["-m", "pccl", "master"], ["-m", "pccl.master"], ["-c", WITHOUT_NATIVE]]
    programs += [[*program, "--background"] for program in programs]
    with MasterNode("127.0.0.1:0") as other:
        address = f"127.0.0.1:{other.port}"
        ended = [start(*program, "--listen", address) for program in programs]
        said = {process.communicate(timeout=60) for process in ended}
    assert [process.returncode for process in ended] == [1] * len(programs)
    [(out, err)] = said
    assert out == ""
    assert f"pccl master cannot listen: the master's address, {address}, is in use" in err


def test_a_master_starts_without_costly_modules():
    code = (
        "import os, sys\n"
        "os.execv = lambda *_: print(*sys.modules)\n"
        "sys.argv = ['pccl', 'master', '--listen', 'localhost:0', '--masters', 'localhost:1,[::1]:2', '--advertise=[::1]:2']\n"
        "from pccl_command import native_master\n"
        "native_master.hand_over('pccl master', sys.argv[2:])\n"
    )
    out, err = start("-c", code).communicate(timeout=60)
    assert "_socket" in out.split(), err
    costly = {"argparse", "asyncio", "cffi", "click", "enum", "ipaddress", "json", "logging", "pccl", "re", "rich", "socket"}
    assert not costly & set(out.split())


def test_a_job_in_the_background_of_a_script_heeds_signals():
    """Such a job has SIGINT ignored."""
    command = f"trap '' INT; exec {sys.executable} -m pccl master --listen 127.0.0.1:0"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    port_of(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped: no run was under way" in err


def test_no_connection_gets_the_number_of_a_closed_standard_stream():
    port = free_ports(1)[0]
    command = f"exec {sys.executable} -m pccl master --listen 127.0.0.1:{port} <&- >&- 2>&-"
    process = subprocess.Popen(["sh", "-c", command], env=ENVIRONMENT)
    try:
        with pccl.Communicator(f"127.0.0.1:{port}") as comm:
            comm.connect(1000)
            assert is_native(process)
            for descriptor in range(3):
                assert not os.readlink(f"/proc/{process.pid}/fd/{descriptor}").startswith("socket")
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_reader_that_has_gone_does_not_end_a_master():
    port = free_ports(1)[0]
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "pccl", "master", "--listen", f"127.0.0.1:{port}"], stdout=writer, stderr=writer, env=ENVIRONMENT
    )
    os.close(writer)
    with pccl.Communicator(f"127.0.0.1:{port}") as comm:
        comm.connect(1000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(("listen", "masters", "place"), PLACES)
def test_the_native_program_is_told_its_place(listen, masters, place):
    words = native_words("--listen", listen, "--masters", masters)
    assert words is not None
    assert words[words.index("--place") + 1] == str(place)


REFUSED = [
    *(("--listen", listen, "--masters", masters) for listen, masters, _ in NO_PLACES),
    *(("--listen", "127.0.0.1:5001", "--masters", "127.0.0.1:5001", "--advertise", other) for other in ("127.0.0.1:5002", "x")),
    *(("--advertise", "127.0.0.1:5001"), ("--log", "x"), ("--log=",), ("--background", "--log="), ("--background=1",)),
    ("--insecure=1",),
    *(("--help",), ("-h",), ("--listen",), ("--listen", "--background"), ("127.0.0.1:0",), ("--list", "127.0.0.1:0"), ("--",)),
    *(("--heartbeat-limit", text) for text in ("0", "-1", "nan", "inf", "1e9", "", "5s")),
    *(("--until-empty", text) for text in ("0", "-1", "nan", "86401", "")),
    *(("--on-sigterm", text) for text in ("", "End", "nonsense")),
    ("--listen", "nowhere.invalid:0"),
]


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_options_that_may_be_wrong_are_left_to_python(arguments):
    assert native_words(*arguments) is None


@given(st.text(alphabet=string.printable, max_size=40) | st.from_regex(r"[\[:.0-9a-g\]]{1,20}:[0-9]{1,6}", fullmatch=True))
def test_the_native_program_gets_no_address_that_python_refuses(text):
    with contextlib.suppress(native_master.UnsureError, OSError):
        host, port, packed = native_master._parse(text)
        endpoint = _address.parse_endpoint(text)
        assert (port, packed) == (endpoint.port, endpoint.literal.packed if endpoint.literal else None)
        assert host == endpoint.host or packed is not None


@pytest.mark.parametrize("address", ["localhost:1", "a-b.c_d.:2", "1.2.3.4:0", "[2001:db8::1]:65535", "0.0.0.0:48148"])
def test_the_native_program_gets_good_addresses(address):
    endpoint = _address.parse_endpoint(address)
    assert native_master._parse(address)[:2] == (endpoint.host, endpoint.port)


def test_limits_are_those_of_the_library():
    assert native_master.DEFAULT_PORT == C.CCOIP_PROTOCOL_PORT_MASTER
    assert native_master.MASTERS_MOST == _address.MASTERS_MAX


@pytest.mark.parametrize("new", [True, False])
def test_a_master_of_a_new_job_asks_no_other_one(new):
    """The others are as new: waiting for their answers would delay the first member on a busy machine."""
    own = f"127.0.0.1:{free_ports(1)[0]}"
    with socket.create_server(("127.0.0.1", 0)) as other:
        masters = f"{own},127.0.0.1:{other.getsockname()[1]}"
        command = [native_master.PROGRAM, "--listen", own, "--masters", masters, *(["--new"] if new else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        try:
            assert process.stdout.readline() == f"pccl master listening on {own}\n"
            with pccl.Communicator(own) as comm:
                comm.connect(1)
            other.setblocking(False)
            if new:
                with pytest.raises(BlockingIOError):
                    other.accept()
            else:
                other.accept()[0].close()
        finally:
            process.kill()
            process.communicate()


# ---- machines that have little installed ----

BLOCKED = (
    "import sys\n"
    "class Blocked:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.partition('.')[0] in {blocked!r}: raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
    "sys.meta_path.insert(0, Blocked())\n"
    "sys.argv[0] = 'pccl'\n"
    "import runpy\n"
    "{run}\n"
)

EVERYTHING = ("numpy", "torch", "click", "rich", "matplotlib", "uvloop", "psutil")
NO_NUMPY = ("numpy", "torch", "matplotlib", "uvloop")


def with_blocked(blocked: tuple[str, ...], *arguments: str, run: str = "import pccl_command; pccl_command.main()"):
    program = start("-c", BLOCKED.format(blocked=blocked, run=run), *arguments)
    out, err = program.communicate(timeout=60)
    assert "Traceback" not in err
    return program.returncode, out, err


ENTRIES = ["import pccl_command; pccl_command.main()", "runpy.run_module('pccl', run_name='__main__', alter_sys=True)"]


@pytest.mark.parametrize("run", ENTRIES)
@pytest.mark.parametrize("blocked", [EVERYTHING, NO_NUMPY, ("rich",), ("click",)])
def test_a_master_needs_cffi_alone(blocked, run):
    status, out, err = with_blocked(blocked, "master", "--listen", "127.0.0.1:0", "--until-empty", "0.2", run=run)
    assert (status, "listening on 127.0.0.1:" in out) == (0, True), err


@pytest.mark.parametrize("blocked", [EVERYTHING, NO_NUMPY])
def test_the_help_needs_cffi_alone(blocked):
    status, out, _ = with_blocked(blocked, "--help")
    assert status == 0
    assert "master" in out


@pytest.mark.parametrize("command", ["info", "top", "launch", "bench", "sim", "stress", "demo"])
def test_a_command_names_the_missing_package(command):
    status, _, err = with_blocked(EVERYTHING, command, *(["--help"] if command != "demo" else []))
    assert status == 2
    assert "click" in err
    assert "pip install" in err


@pytest.mark.parametrize("command", ["info", "top", "launch", "bench", "sim"])
def test_only_commands_that_compute_need_numpy(command):
    assert with_blocked(NO_NUMPY, command, "--help")[0] == 0
    status, _, err = with_blocked(("rich",), command)
    if command in ("info", "top"):
        assert (status, "needs rich" in err, "pip install 'rich'" in err) == (2, True, True)


@pytest.mark.parametrize("command", ["stress", "demo"])
def test_a_command_that_computes_names_its_extra(command):
    status, _, err = with_blocked(NO_NUMPY, command)
    assert status == 2
    assert f"pip install 'pccl[{command}]'" in err


def test_whether_masters_have_a_run():
    free, own = free_ports(1)[0], "127.0.0.1"
    with MasterNode(f"{own}:0") as master:
        masters = f"{own}:{free},{own}:{master.port}"
        assert _master.run_state(masters) is not _master.RunState.SERVED
        with pccl.Communicator(f"{own}:{master.port}") as comm:
            comm.connect()
            assert _master.run_state(masters) is _master.RunState.SERVED
    assert _master.run_state(masters) is not _master.RunState.SERVED


def test_a_master_between_that_does_not_answer_makes_no_end_of_a_run_later(monkeypatch):
    def ask(kind, name, address, *_):
        if address.port == 2:
            time.sleep(0.2)
            raise pccl.ConnectError(Result.MASTER_CONNECTION_FAILED, name, "")
        return struct.pack("<BBQ", 0, *((False, 100) if address.port == 1 else (True, 250)))

    monkeypatch.setattr("pccl._core.questions.ask", ask)
    assert _master.run_state("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3") is _master.RunState.COMPLETED


# ---- until nobody is there ----


def ended(port: int) -> bool:
    """Whether nobody listens there any more, within the patience of a test."""
    limit = time.monotonic() + 60
    while can_connect(port):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("limit", [0, -1, 100_000])
def test_an_idle_limit_out_of_range(limit):
    with pytest.raises(ValueError, match="until_empty"):
        MasterNode("127.0.0.1:0", until_empty=limit)


def test_a_master_ends_if_nobody_comes():
    with MasterNode("127.0.0.1:0", until_empty=0.1) as master:
        master.wait(timeout=60)


@pytest.mark.long
def test_a_master_ends_when_the_last_peer_has_left():
    with MasterNode("127.0.0.1:0", until_empty=2) as master:
        with pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
            comm.connect()
            with pytest.raises(pccl.PCCLTimeoutError):
                master.wait(timeout=4)
        master.wait(timeout=60)


@pytest.mark.long
def test_a_standby_stays_as_long_as_another_one_serves():
    ports = free_ports(2)
    masters = ",".join(f"127.0.0.1:{port}" for port in ports)
    nodes = [MasterNode(address, masters=masters, until_empty=2) for address in masters.split(",")]
    with nodes[0], nodes[1]:
        with pccl.Communicator(masters) as comm:
            comm.connect()
            with pytest.raises(pccl.PCCLTimeoutError):
                nodes[1].wait(timeout=5)
        for node in nodes:
            node.wait(timeout=60)


NO_COMMAND_LINE = (
    "import sys; sys.modules.update(click=None, rich=None); import pccl.distributed; from pccl.master import main; main()"
)


@pytest.mark.parametrize(
    "program", [["-m", "pccl", "master"], ["-c", NO_COMMAND_LINE]]
)  # what torch's backend starts has no click
def test_a_master_in_the_background_outlives_who_started_it(tmp_path, program):
    log = tmp_path / "log"
    begun = subprocess.run(
        [sys.executable, *program, *f"--listen 127.0.0.1:0 --until-empty 10 --background --log {log}".split()],
        capture_output=True,  # its end comes only if the master keeps no pipe
        text=True,
        env={**ENVIRONMENT, "PCCL_LOG_LEVEL": "info"},
        timeout=60,
    )
    assert (begun.returncode, begun.stderr) == (0, "")
    port = int(begun.stdout.rpartition(":")[2])
    with pccl.Communicator(f"127.0.0.1:{port}") as comm:
        comm.connect()
        assert comm.world_size == 1
    assert ended(port)
    assert "master" in log.read_text()


def test_a_master_in_the_background_says_why_it_cannot_listen():
    with MasterNode("127.0.0.1:0") as other:
        begun = subprocess.run(
            [sys.executable, "-m", "pccl", "master", "--listen", f"127.0.0.1:{other.port}", "--background"],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=60,
        )
    assert begun.returncode == 1
    assert "in use" in begun.stderr


def test_a_log_needs_the_background():
    begun = subprocess.run(
        [sys.executable, "-m", "pccl", "master", "--log", "x"], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    assert begun.returncode == 2
    assert "--background" in begun.stderr
