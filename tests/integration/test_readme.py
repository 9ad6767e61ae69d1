"""What README and the guides show, run as it stands in whole programs whose peers are stopped, come late, or lose their master.

On every path the peers that end well, with status 0, hold the same parameters; all others say why they do not.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from peers import ENVIRONMENT, MasterProcess

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def snippets(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


[EXAMPLE] = snippets("README.md")
LOOP, RETRY = snippets("docs/faults.md")
[MASTERS] = snippets("docs/masters.md")
NEWCOMER, *_ = snippets("docs/newcomers.md")

SECONDS = 60
STEPS = 150
MANY = 100_000
"""Steps that take longer than any test."""

WAIT = "timeout=10"
"""For `timeout=60` of the guides: as long as a busy machine needs to start a second Python."""

AROUND = """
import sys, time, zlib
import numpy as np
import pccl

address, steps, peers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if sys.argv[4:] == ["held"]:
    import torch
    print("held", flush=True)
    input()

def average(comm, gradient):
{reduce}

def one_more(step):
    if step == 1:
        print("begun", flush=True)
    time.sleep(0.01)
"""

TRAINING = """
noise = np.random.default_rng()
parameters = np.zeros(1000, np.float32)
comm = pccl.Communicator(address)
comm.connect()
comm.wait_for_peers(peers, WAIT)
for step in range(1, steps + 1):
    gradient = parameters - 1 + noise.normal(0, 0.1, parameters.size).astype(np.float32)
    average(comm, gradient)
    parameters -= 0.1 * gradient
    one_more(step)
comm.are_peers_pending()
print(f"end {zlib.crc32(parameters):08x}")
"""

MODULE = """
import torch

torch.set_num_threads(1)
comm = pccl.Communicator(address)
model = torch.nn.Linear(20, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

def train_a_step():
    global steps
    if steps == MANY and comm.world_size == 3:  # the newcomer is there, however long it took
        steps = state.extra["step"] + 50
    optimizer.zero_grad()
    model(torch.randn(20)).pow(2).sum().backward()
    for parameter in model.parameters():
        average(comm, parameter.grad)
    optimizer.step()
    one_more(state.extra["step"] + 1)
"""

MODULE_END = """
comm.are_peers_pending()
print(f"end {state.hash()}")
"""


def program(reduce: str, *parts: str) -> str:
    text = AROUND.format(reduce=textwrap.indent(reduce, "    ")) + "".join(parts)
    return text.replace("WAIT", WAIT).replace("MANY", str(MANY))


assert "timeout=60" in NEWCOMER
PROGRAMS = {
    "loop": program(LOOP, TRAINING),
    "retry": program(RETRY, TRAINING),
    "newcomer": program(LOOP, MODULE, NEWCOMER.replace("timeout=60", WAIT), MODULE_END),
}


class Run:
    """Peers of a program, as processes."""

    def __init__(self, name: str, address: str, steps: int, count: int, held: int = 0, **environment: str) -> None:
        self._command = [sys.executable, "-c", PROGRAMS[name], address, str(steps), str(count)]
        self._environment = {**ENVIRONMENT, **environment}
        self.peers: list[subprocess.Popen[str]] = []
        self._held = [self.start("held") for _ in range(held)]
        for peer in self._held:
            assert peer.stdout.readline() == "held\n", peer.stderr.read()
        self.peers += [self.start() for _ in range(count)]
        for peer in self.peers:
            said = peer.stdout.readline()
            while said and said != "begun\n":
                said = peer.stdout.readline()
            assert said, peer.stderr.read()

    def start(self, *more: str) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([*self._command, *more], text=True, env=self._environment, **pipes)

    def join(self) -> None:
        """Lets one of the held peers in: Python takes longer to start than the others to train."""
        peer = self._held.pop()
        self.peers.append(peer)
        peer.stdin.write("\n")
        peer.stdin.flush()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers + self._held:
            peer.kill()
            peer.communicate()


def hash_of(peer: subprocess.Popen[str]) -> str:
    """Of a peer that has ended well."""
    out, err = peer.communicate(timeout=SECONDS)
    assert peer.returncode == 0, err
    return out.splitlines()[-1].removeprefix("end ")


def reason_of(peer: subprocess.Popen[str]) -> str:
    """Of a peer that has not: the last line that it printed."""
    out, err = peer.communicate(timeout=SECONDS)
    assert peer.returncode != 0, out
    assert "end " not in out
    return err.strip().splitlines()[-1]


def test_the_example_is_the_one_that_runs():
    text = (ROOT / "examples" / "all_reduce.py").read_text(encoding="utf-8")
    assert text.partition('"""\n\n')[2] == EXAMPLE


@pytest.mark.parametrize(("name", "count"), [("loop", 3), ("retry", 3), ("newcomer", 2)])
def test_a_peer_that_was_expelled_does_not_go_on(name, count):
    with MasterProcess(heartbeat_limit=1.0) as master, Run(name, master.address, STEPS, count) as run:
        stopped, *others = run.peers
        stopped.send_signal(signal.SIGSTOP)
        assert len({hash_of(peer) for peer in others}) == 1
        stopped.send_signal(signal.SIGCONT)
        reason = reason_of(stopped)
        assert "ConnectionFailedError" in reason
        assert "the master expelled this peer: no heartbeat for 1.0 s" in reason
        assert "reconnect()" in reason


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("way", ["detach", "end"])
def test_peers_whose_master_does_not_come_back_end(monkeypatch, name, way):
    monkeypatch.setitem(ENVIRONMENT, "PCCL_MASTER_ON_SIGTERM", way)
    with MasterProcess() as master, Run(name, master.address, MANY, 2, PCCL_MASTER_RECOVERY_MS="1000") as run:
        master.signal(signal.SIGTERM)
        assert all("ConnectionFailedError" in reason_of(peer) for peer in run.peers)


def test_peers_whose_master_comes_back_go_on():
    with MasterProcess() as master, Run("loop", master.address, STEPS, 2) as run:
        master.signal(signal.SIGTERM)
        master.process.wait(SECONDS)
        master.start()
        assert len({hash_of(peer) for peer in run.peers}) == 1


@pytest.mark.parametrize("name", ["loop", "retry"])
def test_a_peer_that_comes_late_begins_nothing_anew(name):
    with MasterProcess() as master, Run(name, master.address, STEPS, 2) as run:
        late = run.start()
        run.peers.append(late)
        assert len({hash_of(peer) for peer in run.peers[:2]}) == 1
        assert "1 of 2 peers are there" in reason_of(late)


def test_a_newcomer_goes_on_with_the_others():
    with MasterProcess() as master, Run("newcomer", master.address, MANY, 2, held=2) as run:
        run.join()
        assert len({hash_of(peer) for peer in run.peers}) == 1
        run.join()  # when all have ended
        assert "1 of 2 peers are there" in reason_of(run.peers[-1])


def test_a_list_of_masters(tmp_path):
    with MasterProcess() as master:
        addresses = re.findall(r"[\d.]+:\d+", MASTERS)
        assert len(addresses) == 2
        text = MASTERS.replace(addresses[0], master.address)
        subprocess.run([sys.executable, "-c", f"import pccl\n{text}"], check=True, env=ENVIRONMENT, timeout=SECONDS)


def test_the_program_for_users_of_torch(tmp_path):
    with MasterProcess() as master:
        command = [sys.executable, str(ROOT / "examples" / "torch_loop.py"), master.address]
        peers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=tmp_path)
            for _ in range(2)
        ]
        assert len({hash_of(peer) for peer in peers}) == 1
    assert (tmp_path / "checkpoint.pt").exists()
