"""Without keys nothing is reached from beyond loopback, and nothing talks to beyond it, unless the user says so."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from peers import ENVIRONMENT, PATIENCE, Background, address_of, form, on_all

from pccl import Communicator, ConnectError, MasterNode, PCCLError, Result
from pccl._core import address as _address
from pccl._core.address import parse_endpoint
from pccl._peer import connection
from pccl._run import keys as _keys
from pccl._watch.diagnosis import diagnose_run
from pccl.lab.ports import free_ports

LISTEN = "0A"
"""A state in /proc/net/tcp."""

WAYS_OUT = ("keys=", "PCCL_KEYS", "insecure=True", "PCCL_INSECURE=1")
COMMAND_WAYS_OUT = ("--keys FILE", "--listen 127.0.0.1:", "--insecure")
ELSEWHERE = "192.0.2.77:48148"
"""Of nobody: it is reserved for documents."""

WITHOUT_NATIVE = (
    "import pccl_command, pccl_command.native_master as native, sys\n"
    "native.PROGRAM = '/nowhere/spawned_master'\n"
    "sys.argv[:1] = ['pccl', 'master']\n"
    "pccl_command.main()\n"
)
COMMANDS = {"native": ["-m", "pccl", "master"], "python": ["-c", WITHOUT_NATIVE]}


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PCCL_KEYS", "PCCL_INSECURE", "PCCL_MASTERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def own() -> str:
    """An address of this machine beyond loopback. Connections to it stay on this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no IPv4 address beyond loopback")
        found = str(probe.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this machine has no IPv4 address beyond loopback")
    return found


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """The files for masters and for peers."""
    master, peer = _keys.write_files(tmp_path / "run", _keys.new_keys())
    return str(master), str(peer)


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 10).close()
    except ConnectionRefusedError:
        return False
    return True


def run(*words: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in ENVIRONMENT.items() if name not in ("PCCL_KEYS", "PCCL_LOG_LEVEL")}
    return subprocess.Popen(
        [sys.executable, *words],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(*words: str, **environment: str) -> tuple[int, str]:
    """The exit status, and what is printed."""
    process = run(*words, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def ended(process: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """Where a master listens, which is then stopped, and the warnings of its log."""
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return line.removeprefix("pccl master listening on ").strip(), [one for one in err.splitlines() if " WARN " in one]


def refusal(call) -> PCCLError:
    with pytest.raises(PCCLError) as caught:
        call()
    assert caught.value.result is Result.INVALID_ARGUMENT
    assert not isinstance(caught.value, ConnectError)
    for word in WAYS_OUT:
        assert word in str(caught.value)
    return caught.value


# ---- masters ----


@pytest.mark.parametrize(
    ("wildcard", "hosts"),
    [
        ("0.0.0.0", ["127.0.0.1", "127.0.1.1"]),
        ("[::ffff:0.0.0.0]", ["127.0.0.1"]),
        ("[::]", ["127.0.0.1", "127.0.1.1", "::1"]),
    ],
)
def test_a_wildcard_is_loopback(own, wildcard, hosts):
    if "::1" in hosts and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with MasterNode(f"{wildcard}:0") as master:
        assert not listens(own, master.port)
        for host in hosts:
            assert listens(host, master.port)
        with Communicator(f"localhost:{master.port}") as comm:
            comm.connect(timeout=PATIENCE)
            assert comm.world_size == 1


def test_a_wildcard_says_what_it_becomes():
    code = "import pccl\nwith pccl.MasterNode('0.0.0.0:0'): pass"
    status, said = outcome("-c", code)
    assert status == 0
    [line] = [line for line in said.splitlines() if " WARN " in line]
    assert "127.0.0.1" in line
    assert "0.0.0.0" in line
    for word in WAYS_OUT:
        assert word in line


@pytest.mark.parametrize("value", [None, "0", "", "yes", "01", "true"])
def test_a_master_beyond_loopback_is_refused(own, value, monkeypatch):
    if value is not None:
        monkeypatch.setenv("PCCL_INSECURE", value)
    error = refusal(MasterNode(f"{own}:0").run)
    assert own in str(error)


def test_a_master_may_be_given_other_settings_after_a_refusal(own):
    with pytest.raises(PCCLError):
        MasterNode(f"{own}:0", insecure=False).run()
    with MasterNode(f"{own}:0", insecure=True) as master:
        assert listens(own, master.port)


@pytest.mark.parametrize("listen", ["OWN", "0.0.0.0", "[::ffff:0.0.0.0]"])
@pytest.mark.parametrize("way", ["argument", "environment"])
def test_a_master_that_the_user_has_permitted(own, listen, way, monkeypatch):
    if way == "environment":
        monkeypatch.setenv("PCCL_INSECURE", "1")
    with MasterNode(f"{listen.replace('OWN', own)}:0", insecure=way == "argument") as master:
        address = f"{own}:{master.port}"
        with Communicator(address, insecure=way == "argument") as comm:
            comm.connect(timeout=PATIENCE)
            assert comm.world_size == 1
            assert diagnose_run(parse_endpoint(address), insecure=way == "argument").peer_count == 1


def test_a_permitted_master_warns_once(own):
    for address, environment in ((own, {"PCCL_INSECURE": "1"}), ("0.0.0.0", {"PCCL_INSECURE": "1"})):
        status, said = outcome("-c", f"import pccl\nwith pccl.MasterNode('{address}:0'): pass", **environment)
        assert status == 0
        [line] = [line for line in said.splitlines() if " WARN " in line]
        assert f"{address}:0" in line
        assert "without keys" in line
    status, said = outcome("-c", "import pccl\nwith pccl.MasterNode('127.0.0.1:0'): pass", PCCL_INSECURE="1")
    assert (status, " WARN " in said) == (0, False)


def test_keys_permit_every_address_and_win(own, keys, monkeypatch):
    monkeypatch.setenv("PCCL_INSECURE", "1")
    master_keys, peer_keys = keys
    with MasterNode(f"{own}:0", keys=master_keys, insecure=True) as master:
        address = f"{own}:{master.port}"
        with Communicator(address, keys=peer_keys, insecure=True) as comm:
            comm.connect(timeout=PATIENCE)
        with Communicator(address, insecure=True) as comm, pytest.raises(ConnectError, match="it encrypts"):
            comm.connect(1)


@pytest.mark.parametrize("other", [ELSEWHERE, "[2001:db8::1]:48148"])
def test_a_standby_is_told_of_a_master_beyond_loopback(other):
    here = f"127.0.0.1:{free_ports(1)[0]}"
    for masters in (f"{here},{other}", f"{other},{here}"):
        assert other in str(refusal(MasterNode(here, masters=masters).run))
        with MasterNode(here, masters=masters, insecure=True):
            pass


# ---- peers and questions ----


@pytest.mark.parametrize("address", [ELSEWHERE, "[2001:db8::1]:48148", "[::ffff:10.0.0.1]:48148"])
def test_a_peer_refuses_a_master_beyond_loopback(address):
    with Communicator(address) as comm:
        error = refusal(comm.connect)
        assert address.replace("[::ffff:10.0.0.1]", "10.0.0.1") in str(error)
        refusal(comm.connect)  # again


def test_a_refusal_is_not_repeated(monkeypatch):
    looked_up = []

    def resolve(endpoint, deadline):
        looked_up.append(endpoint)
        return _address.resolve(endpoint, deadline)

    monkeypatch.setattr(connection, "resolve", resolve)
    with Communicator(ELSEWHERE) as comm:
        refusal(lambda: comm.connect(100, wait_for_master=1000))
    assert len(looked_up) == 1


@pytest.mark.parametrize("place", [0, 1])
def test_a_list_with_a_master_beyond_loopback(place):
    with MasterNode("127.0.0.1:0") as master:
        addresses = [address_of(master)]
        addresses.insert(place, ELSEWHERE)
        with Communicator(",".join(addresses)) as comm:
            assert ELSEWHERE in str(refusal(comm.connect))


def test_further_masters_of_the_environment(monkeypatch):
    monkeypatch.setenv("PCCL_MASTERS", ELSEWHERE)
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as comm:
        assert ELSEWHERE in str(refusal(comm.connect))


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_with_several_addresses(order, monkeypatch):
    """Only those of loopback are used."""
    with MasterNode("127.0.0.1:0") as master:
        hosts = ["127.0.0.1", "192.0.2.77"][::order]
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 1)) for host in hosts]
        )
        endpoint = parse_endpoint(f"some.name:{master.port}")
        assert diagnose_run(endpoint).peer_count == 0
        with Communicator(str(endpoint)) as comm:
            comm.connect(1)
        hosts = ["192.0.2.77", "192.0.2.78"]
        with Communicator(str(endpoint)) as comm:
            assert "192.0.2.77" in str(refusal(comm.connect))
        assert "192.0.2.77" in str(refusal(lambda: diagnose_run(endpoint)))


@pytest.mark.parametrize("value", ["0", "", "2", "on"])
def test_other_values_permit_nothing(value, monkeypatch):
    monkeypatch.setenv("PCCL_INSECURE", value)
    with Communicator(ELSEWHERE) as comm:
        refusal(comm.connect)


def test_a_permitted_peer_dials(own):
    port = free_ports(1)[0]
    for insecure, expected in ((True, "Failed to connect to the master node"), (False, "beyond loopback")):
        with Communicator(f"{own}:{port}", insecure=insecure) as comm, pytest.raises(PCCLError, match=expected) as caught:
            comm.connect(1)
        assert isinstance(caught.value, ConnectError) == insecure


def test_a_wildcard_is_this_host_for_a_peer():
    with MasterNode("127.0.0.1:0") as master, Communicator(f"0.0.0.0:{master.port}") as comm:
        comm.connect(timeout=PATIENCE)


def listeners(*, own: bool) -> set[tuple[str, int]]:
    """Where this process listens, or where all others of this machine do, by TCP over IPv4 and IPv6."""
    inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            host, port = words[1].split(":")
            if words[3] == LISTEN and (f"socket:[{words[9]}]" in inodes) == own:
                packed = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
                family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
                found.add((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def test_the_listeners_of_peers_are_at_loopback(own):
    before = listeners(own=True)
    with MasterNode("0.0.0.0:0") as master, ExitStack() as stack:
        comms: list[Communicator] = []
        for host in ("127.0.0.1", "localhost"):
            fresh = stack.enter_context(Communicator(f"{host}:{master.port}"))
            joining = Background(lambda comm=fresh: comm.connect(timeout=PATIENCE))
            on_all(comms, lambda comm, rank: form(comm, len(comms) + 1))
            joining.result()
            comms.append(fresh)
        made = listeners(own=True) - before
        assert len(made) >= 4  # two of the master, one of each peer
        assert {host for host, _ in made} <= {"127.0.0.1", "127.0.1.1", "::1"}
        others = listeners(own=False)
        reached = {port for _, port in made if listens(own, port)}
        others |= listeners(own=False)  # other tests may use these ports at other addresses
        assert all({(host, port) for host in (own, "0.0.0.0", "::")} & others for port in reached)


# ---- commands ----


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0", "OWN:0", "192.0.2.77:0"])
@pytest.mark.parametrize("background", [False, True])
def test_the_command_refuses(own, command, listen, background):
    words = ["--background"] if background else []
    status, said = outcome(*COMMANDS[command], "--listen", listen.replace("OWN", own), *words)
    assert status == 2
    [line] = said.splitlines()
    for word in COMMAND_WAYS_OUT:
        assert word in line


@pytest.mark.parametrize("value", ["0", "", "yes"])
@pytest.mark.parametrize("command", COMMANDS)
def test_other_values_permit_no_command(command, value):
    status, said = outcome(*COMMANDS[command], "--listen", "0.0.0.0:0", PCCL_INSECURE=value)
    assert status == 2
    assert ("is ignored; set it to 0 or 1" in said) == (value != "0")


def test_both_refuse_with_the_same_words():
    said = {outcome(*words, "--listen", "0.0.0.0:48148") for words in COMMANDS.values()}
    assert len(said) == 1


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_permitted_command_warns_in_one_line(command, way):
    words = ["--insecure"] if way == "option" else []
    environment = {"PCCL_INSECURE": "1"} if way == "environment" else {}
    address, warnings = ended(run(*COMMANDS[command], "--listen", "0.0.0.0:0", *words, **environment))
    assert re.fullmatch(r"0\.0\.0\.0:[0-9]+", address)
    [line] = warnings
    assert "without keys" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_with_keys_needs_no_permission(command, keys):
    for words in ([], ["--insecure"]):
        address, warnings = ended(run(*COMMANDS[command], "--listen", "0.0.0.0:0", "--keys", keys[0], *words))
        assert (address.rpartition(":")[0], warnings) == ("0.0.0.0", [])
    assert ended(run(*COMMANDS[command], "--listen", "127.0.0.1:0"))[1] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_with_a_master_elsewhere_in_its_list(command):
    here = f"127.0.0.1:{free_ports(1)[0]}"
    status, said = outcome(*COMMANDS[command], "--listen", here, "--masters", f"{here},{ELSEWHERE}")
    assert status == 2
    assert f"the master at {ELSEWHERE} is beyond loopback" in said
    assert "--keys" in said
    assert "--listen 127" not in said


@pytest.mark.parametrize(("words", "wildcard"), [([], False), (["--insecure"], True), (["--keys", "FILE"], True)])
def test_where_a_command_listens_by_default(words, wildcard, keys):
    from pccl_command.native_master import native_arguments

    given = [word.replace("FILE", keys[0]) for word in words]
    listen = native_arguments(given)[0][1]
    assert listen == ("0.0.0.0:48148" if wildcard else "127.0.0.1:48148")


ASKING = [["top", "--once"], ["top", "--once", "--json"], ["info"], ["info", "--json"], ["bench", "allreduce"]]


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_questions_refuse_a_master_beyond_loopback(command):
    status, said = outcome("-m", "pccl", *command, "--master", ELSEWHERE)
    assert status == 2
    assert "Traceback" not in said
    for word in ("192.0.2.77:48148", "--keys", "PCCL_KEYS", "--insecure", "PCCL_INSECURE=1"):
        assert word in said


@pytest.mark.parametrize("command", [["top", "--once"], ["info"]], ids=" ".join)
def test_permitted_questions_are_asked(own, command):
    with MasterNode(f"{own}:0", insecure=True) as master:
        asked = ["-m", "pccl", *command, "--master", f"{own}:{master.port}"]
        assert outcome(*asked, "--insecure")[0] == 0
        assert outcome(*asked, PCCL_INSECURE="1")[0] == 0


# ---- torch ----

JOB = """
import torch.distributed as dist, sys
try:
    dist.init_process_group("pccl", init_method="tcp://127.0.0.1:{port}", rank=0, world_size=1)
except RuntimeError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


def test_a_job_with_a_master_beyond_loopback_fails_at_once():
    pytest.importorskip("torch")
    status, said = outcome("-c", JOB.format(port=free_ports(1)[0]), PCCL_MASTER=ELSEWHERE)
    assert status == 1
    assert "BootstrapError" in said
    assert ELSEWHERE in said
    for word in WAYS_OUT:
        assert word in said
