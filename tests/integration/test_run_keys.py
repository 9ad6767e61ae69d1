"""Keys of one run: its peers work as with the keys of all runs, and whoever holds another run's keys gets nowhere."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner
from performers import PATIENCE, MasterProcess, Performer
from run_peers import RunPeer

import pccl
from pccl import _native
from pccl._core.address import fill_socket_address, parse_endpoint
from pccl._run import keys as _keys
from pccl._watch.diagnosis import remove_member, runs_at
from pccl.cli import main
from pccl.lab.ports import free_ports

pytestmark = [pytest.mark.timeout(120), pytest.mark.plain("it makes keys of its own")]

QUIET = {"PCCL_LOG_LEVEL": "ERR", "PCCL_SAME_HOST_MEMORY": "0"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PCCL_KEYS", raising=False)
    _keys.write_files(tmp_path / "run", _keys.new_keys())
    for run in ("alpha", "beta"):
        _keys.write_run_file(tmp_path / "run", run)
    return tmp_path


class Team:
    """Masters with the keys of a folder, and peers that each have a file of it."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self._folder = folder
        self._undo = undo
        self._count = 0
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        self.masters = [
            undo.enter_context(MasterProcess(address, masters=self.listed, keys=str(folder / "run.master")))
            for address in self.addresses
        ]

    @property
    def listed(self) -> str:
        return ",".join(self.addresses)

    def start(self, run: str, *files: str) -> list[Performer]:
        """Peers with these files that join; `run`: what stands behind the addresses."""
        made = []
        for file in files:
            environment = QUIET | {"PCCL_KEYS": str(self._folder / file)}
            made.append(Performer(RunPeer, self._count, (self.listed + run, PATIENCE), environment))
            self._undo.callback(made[-1].kill)
            self._count += 1
        return made


@pytest.fixture
def team(folder: Path) -> Iterator[Team]:
    with contextlib.ExitStack() as undo:
        yield Team(folder, undo)


def ask(members: list[Performer], method: str, *arguments: object) -> list[object]:
    for member in members:
        member.tell(method, *arguments)
    return [member.answer() for member in members]


def test_members_with_either_file_survive_the_loss_of_a_master(team, folder):
    """The newcomer comes to the standby, and its address has no name."""
    alpha = team.start("/alpha", "run.peer", "run-alpha.peer") + team.start("", "run-alpha.peer")
    beta = team.start("/beta", "run-beta.peer", "run.peer")
    unnamed = team.start("", "run.peer")
    for members in (alpha, beta, unnamed):
        ask(members, "join", len(members))
    assert [ask(members, "reduce") for members in (alpha, beta)] == [[3.0] * 3, [2.0] * 2]
    assert [members[-1].ask("members") for members in (alpha, beta, unnamed)] == [3, 2, 1]
    shown = top(team.addresses[0], folder / "run-beta.peer")
    assert len(json.loads(shown)["members"]) == 2
    team.masters[0].kill()
    assert ask(alpha, "vote") == ["SUCCESS"] * 3
    assert ask(beta, "vote") == ["SUCCESS"] * 2
    late = team.start("", "run-alpha.peer")
    late[0].tell("join", 4)
    assert ask(alpha, "join_more", 4) == [4] * 3
    late[0].answer()
    assert ask(alpha + late, "reduce") == [4.0] * 4
    assert ask(beta, "reduce") == [2.0] * 2


def top(address: str, keys: Path, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["top", "--master", address, "--once", "--json", "--keys", str(keys)])
    assert result.exit_code == status, result.output
    return result.output


def refusal(address: str, keys: Path) -> str:
    """Why a communicator with these keys does not connect."""
    with pccl.Communicator(address, keys=keys) as comm, pytest.raises(pccl.PCCLError) as raised:
        comm.connect(1, timeout=PATIENCE)
    return str(raised.value)


def test_another_run_is_refused(team, folder):
    beta = team.start("/beta", "run-beta.peer", "run-beta.peer")
    ask(beta, "join", 2)
    alpha = folder / "run-alpha.peer"
    there = team.addresses[0]
    both = "the key file is for run alpha, and the address names run beta"
    assert both in refusal(f"{there}/beta", alpha)
    assert both in top(f"{there}/beta", alpha, status=2)
    member = json.loads(top(f"{there}/beta", folder / "run.peer"))["members"][0]["uuid"]
    for command in ("drain", "expel", "stacks"):
        result = CliRunner().invoke(main, [command, member, "--master", f"{there}/beta", "--keys", str(alpha)])
        assert result.exit_code == 2
        assert both in result.output
    with pytest.raises(pccl.PCCLError, match="need the key file of the masters"):
        remove_member(parse_endpoint(f"{there}/beta"), UUID(member), at_update=False, keys=str(alpha))
    for name, text in {
        "as beta": alpha.read_text().replace("run alpha\n", "run beta\n"),
        "as all": alpha.read_text().replace("run alpha\n", ""),
        "of others": _keys.new_keys().of_run("beta").text("peer"),
    }.items():
        file = folder / name
        file.write_text(re.sub("(?m)^#.*\n", "", text))
        file.chmod(0o600)
        assert "not of one run" in refusal(f"{there}/beta", file)
    with pytest.raises(pccl.PCCLError, match="are for peers: a master needs the other file"):
        pccl.MasterNode("127.0.0.1:0", keys=alpha)
    assert ask(beta, "vote") == ["SUCCESS"] * 2
    assert beta[0].ask("members") == 2


def test_programs_in_c_take_the_run_from_the_file(folder, monkeypatch):
    ffi, library = _native.ffi, _native.lib
    params, out = ffi.new("pcclCommCreateParams_t *"), ffi.new("pcclComm_t **")
    monkeypatch.setenv("PCCL_KEYS", str(folder / "run-alpha.peer"))
    with pccl.MasterNode("127.0.0.1:0", keys=folder / "run.master") as master:
        fill_socket_address(params.master_address, ipaddress.ip_address("127.0.0.1"), master.port)
        for run, code in (("", library.pcclSuccess), ("alpha", library.pcclSuccess), ("beta", library.pcclInvalidArgument)):
            monkeypatch.setenv("PCCL_RUN", run)
            assert library.pcclCreateCommunicator(params, out) == library.pcclSuccess
            try:
                assert library.pcclConnect(out[0]) == code
                if code == library.pcclSuccess:
                    assert runs_at(parse_endpoint(f"127.0.0.1:{master.port}")) == {"alpha": 1}
            finally:
                library.pcclDestroyCommunicator(out[0])
        assert b"for run alpha, and the address names run beta" in ffi.string(library.pccl_ext_detail())
