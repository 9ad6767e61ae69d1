"""The blocks of Python in guides that are no whole programs, with the names that they leave to the reader."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from peers import ENVIRONMENT, team, together

import pccl

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(code: str, **names: Any) -> dict[str, Any]:
    """Returns what the names stand for after `code`."""
    exec(compile(code, "guide", "exec"), names)
    return names


def on_both(comms: list[pccl.Communicator], code: str, names: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    return together(
        *(lambda rank=rank, comm=comm: run(code, comm=comm, pccl=pccl, **names(rank)) for rank, comm in enumerate(comms))
    )


def test_leaving(monkeypatch, tmp_path):
    sources, workers, limits = blocks("leaving.md")
    monkeypatch.syspath_prepend(DOCS.parent / "examples")
    asked: list[Any] = []
    answers = {"token": "T", "instance-action": "{}", "preempted": "TRUE", "scheduledevents": '{"EventType": "Preempt"}'}

    def urlopen(request, timeout):
        asked.append((request.get_method(), request.full_url, request.headers, timeout))
        path = tmp_path / "answer"
        path.write_text(next(answer for part, answer in answers.items() if part in request.full_url))
        return path.open("rb")

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    run(sources.replace("poll=aws, every=5", "poll=lambda: False, every=60"))["notice"].close()
    assert {number: signal.getsignal(number) for number in before} == before
    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    spot = importlib.import_module("spot")
    assert [spot.aws(), spot.gcp(), spot.azure()] == [True] * 3
    assert [method for method, *_ in asked] == ["PUT", "GET", "GET", "GET"]
    assert asked[1][2] == {"X-aws-ec2-metadata-token": "T"}
    answers.update({"instance-action": "", "preempted": "FALSE", "scheduledevents": '{"Events": []}'})
    assert [spot.aws(), spot.gcp(), spot.azure()] == [False] * 3
    loading = iter(run(workers, signal=signal, DataLoader=torch.utils.data.DataLoader, dataset=range(8))["loader"])
    assert [next(loading).item() for _ in range(4)] == [*range(4)]  # one of each worker
    for worker in loading._workers:
        os.kill(worker.pid, signal.SIGTERM)
    assert [batch.item() for batch in loading] == [*range(4, 8)]
    run(limits, pccl=pccl)["comm"].close()


def test_collectives():
    plain, grouped, awaited = blocks("collectives.md")
    with team([0, 0]) as comms:

        def tensors(rank: int) -> dict[str, Any]:
            numbers = np.arange(4, dtype=np.float32) + rank
            own = np.full(2, rank, np.float32)
            zeros = np.zeros((2, 4), np.float32)
            return {"parameters": numbers.copy(), "own_part": own, "whole": zeros[0], "outgoing": numbers, "incoming": zeros[1]}

        for rank, names in enumerate(on_both(comms, plain, tensors)):
            assert names["parameters"].tolist() == [0, 1, 2, 3]
            assert names["whole"].tolist() == [0, 0, 1, 1]
            assert names["own_part"].tolist() == [[0, 0], [2, 2]][rank]
            assert names["incoming"].tolist() == [[0, 1, 1, 2], [2, 3, 3, 4]][rank]
        for names in on_both(comms, grouped, lambda rank: {"gradients": np.full(2, rank, np.float32)}):
            assert names["gradients"].tolist() == [1, 1]
        code = (
            "import asyncio\nasync def work():\n"
            + textwrap.indent(awaited + "return infos\n", "    ")
            + "infos = asyncio.run(work())"
        )
        buckets = [[np.full(8, rank, np.float32) for _ in range(3)] for rank in range(2)]
        for names in on_both(comms, code, lambda rank: {"buckets": buckets[rank]}):
            assert [info.world_size for info in names["infos"]] == [2, 2, 2]
        assert all(bucket.tolist() == [1] * 8 for bucket in buckets[0] + buckets[1])


def test_diagnosis(capsys):
    findings, links = blocks("diagnosis.md")
    with team([0, 0]) as comms:
        assert comms[0].diagnose().members
        on_both(comms, findings, lambda rank: {})
        on_both(comms, links, lambda rank: {})
    assert len(re.findall(r"^rank [01] \(.*\): ", capsys.readouterr().out, re.MULTILINE)) == 2


def test_distributed(tmp_path):
    [line] = blocks("distributed.md")
    environment = {**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    code = f"import os\n{line}\nprint(dist.get_backend(), dist.get_world_size())\ndist.destroy_process_group()"
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "pccl 1"


def test_data_and_fixed_membership(tmp_path):
    """One process, since how members share the data is tested elsewhere."""
    [fixed] = blocks("fixed.md")
    short = (block.replace("num_workers=4", "num_workers=0").replace("(10)", "(1)") for block in blocks("data.md"))
    loop, streams, whole_batches = (block.replace("1024", "64") for block in short)
    made, stepping = whole_batches.split("\n", 1)
    streams = streams.replace("...", "shards.commit()")
    checkpoint = blocks("sharded.md")[3].replace("code=(3, 1)", "copies=1")
    before = """
        import sys
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from contextlib import nullcontext
        from torch.utils.data import DataLoader, TensorDataset
        import pccl.data, pccl.distributed, pccl.state
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dataset = TensorDataset(torch.ones(70, 3), torch.ones(70, 1))
        paths, path = [range(40), range(30)], sys.argv[1]
        def loss_of(outputs, targets):
            return (outputs - targets).square().mean(dim=1)
        def records_of(shard):
            return iter(shard)
    """
    again = """
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        class First(torch.nn.Linear):
            def forward(self, batch):
                return super().forward(batch[0])
        plain, model, world_size, counted = model, torch.nn.parallel.DistributedDataParallel(First(3, 1)), 1, []
        def loss_of(outputs):
            counted.append(len(outputs))
            return outputs.square().mean()
    """
    between = """
        assert counted[:2] == [32, 32], counted
        model = plain
        assert run.step == 3
        state = {"model": model.state_dict()}
        weights = model.weight.detach().clone()
    """
    after = """
        assert torch.equal(state["model"]["weight"], weights)
        again = {"model": {name: torch.zeros_like(tensor) for name, tensor in state["model"].items()}}
        dcp.load(again, checkpoint_id=path)
        assert torch.equal(again["model"]["weight"], weights)
        print("trained")
        dist.destroy_process_group()
    """
    before, again, between, after = map(textwrap.dedent, (before, again, between, after))
    parts = [before, fixed, loop, made, again, stepping + "    sampler.commit()\n", between, streams, checkpoint, after]
    environment = {**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "-c", "\n".join(parts), str(tmp_path / "checkpoint")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "trained\n"


def test_newcomers_beside_the_steps():
    _, overlapped = blocks("newcomers.md")
    stepped: list[int] = []

    class State:
        extra: ClassVar[dict[str, int]] = {"step": 0}

    def step():
        State.extra["step"] += 1
        stepped.append(State.extra["step"])

    averaged: list[int] = []
    run(
        overlapped,
        zeros=0,
        state=State,
        steps=3,
        admit_newcomers=lambda: None,
        average=lambda gradients, weight: averaged.append(weight),
        optimizer=type("Optimizer", (), {"step": staticmethod(step)}),
        forward_and_backward=lambda: 1,
    )
    assert (stepped, averaged) == ([1, 2, 3], [0, 1, 1])


def test_numbers_of_a_program():
    told, wandb = blocks("events.md")
    logged: list[Any] = []
    log = type("Log", (), {"log": lambda _, values, step: logged.append((step, values))})
    library = type("Library", (), {"init": staticmethod(lambda project: log())})
    with team([0, 0]) as comms:
        names = {"wandb": library, "steps": 1, "train": lambda step: 0.5, "loss": 0.25, "tokens": 100}
        for code in (told, wandb):
            on_both(comms, code, lambda rank: names)
    [(step, values)] = logged
    assert (step, values.pop("members")) == (0, 2)
    values.pop("findings")
    assert {name.partition("/")[0] for name in values} >= {"loss", "late_ms"}


def test_plain_tensors():
    code = blocks("sharded.md")[2]
    with team([0, 0]) as comms:

        def parts(rank: int) -> dict[str, Any]:
            half = np.arange(2, dtype=np.float32) + 2 * rank
            own = {"part": half, "offset": (2 * rank,), "new_part": np.zeros(2, np.float32), "new_offset": (2 - 2 * rank,)}
            return {**own, "whole_shape": (4,), "step": 7}

        for rank, names in enumerate(on_both(comms, code, parts)):
            assert names["step"] == 7
            assert names["new_part"].tolist() == [[2, 3], [0, 1]][rank]
            comms[rank].drop_snapshots(snapshots=names["snapshots"])


def test_every_block_of_python_runs_in_some_test():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    pages = [page.name for page in DOCS.glob("*.md") if blocks(page.name)]
    quickstarts = {f"quickstart-{name}.md" for name in ("ddp", "diloco", "own-loop")}  # test_quickstarts has these names
    assert [name for name in pages if name not in quickstarts and name not in tests] == []


def test_torchft(monkeypatch):
    torchft = pytest.importorskip("torchft")
    [code] = blocks("torchft.md")
    monkeypatch.setattr(torchft, "Manager", dict)
    manager = run(code, settings={})["manager"]
    assert isinstance(manager["pg"], pccl.torchft.ProcessGroup)


def test_diloco(tmp_path, monkeypatch):
    whole, joined, saved = blocks("diloco.md")
    monkeypatch.chdir(tmp_path)
    with pccl.MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        code = whole.replace("model = ...", "model = torch.nn.Linear(2, 1)").replace("203.0.113.7:48148", address)
        code = code.replace("sync_every=100", "sync_every=2").replace("outer_step < 500", "outer_step < 3")
        names = run(code, loss=lambda model: model(torch.randn(4, 2)).square().mean())
        assert names["diloco"].outer_step == 3

        def again() -> dict[str, Any]:
            return {**names, "comm": pccl.Communicator(address)}

        assert run(joined, **again())["diloco"].state["epoch"] == 1
        schedule = torch.optim.lr_scheduler.ConstantLR(names["optimizer"])
        code = saved.replace("peers=3", "sync_every=1").replace("outer_step % 100", "outer_step % 2")
        for start in (0, 2):
            more = {**again(), "os": os, "schedule": schedule, "batches": range(2)}
            assert run(code, **more)["diloco"].outer_step == start + 2


@pytest.mark.timeout(120)
def test_sharded(tmp_path):
    block, replicas = blocks("sharded.md")[:2]
    before = """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        import pccl.distributed
        model, steps = torch.nn.Linear(3, 2), 5
        def train_a_step():
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    """
    says = "print(f'steps: {run.step}\\n', end='', flush=True)\n"  # in one piece: both ranks write to one pipe
    between = f"{says}model = torch.nn.Linear(3, 2)\n"
    program = tmp_path / "train.py"
    loop = block[block.index("while ") :]
    program.write_text(textwrap.dedent(before) + block + between + replicas + loop + says + "dist.destroy_process_group()\n")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc_per_node",
        "2",
    ]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=110, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("steps: 5") == 4


def test_parity():
    check, replay = blocks("parity.md")
    with team([0, 0]) as comms:

        def model(rank: int) -> dict[str, Any]:
            made = torch.nn.Linear(3, 2)
            torch.nn.init.ones_(made.weight)
            torch.nn.init.zeros_(made.bias)
            return {"model": made, "torch": torch, "inputs": torch.full((4, 3), float(rank)), "step": 100}

        for names in on_both(comms, replay, model):
            assert len(names["compute"](names["inputs"])) == 3
        on_both(comms, check, lambda rank: {**model(rank), "state": {"x": np.zeros(3)}})
        with pytest.raises(pccl.ParityError, match="entry 'x' differs, and no majority"):
            on_both(comms, check, lambda rank: {**model(rank), "state": {"x": np.full(3, rank)}})
