"""Cases of tests/gpu/run.py: the backend of torch.distributed, DDP, FSDP2 and DiLoCo, with models at the GPU."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from member import Member, SkippedError

import pccl
from pccl import Communicator, ReduceOp


@contextlib.contextmanager
def process_group(member: Member) -> Iterator[Any]:
    """Of torch.distributed, by its backend; gives torch.distributed."""
    importlib.import_module("pccl.distributed")  # also where the package has no entry points
    dist = member.torch.distributed
    store = Path(tempfile.gettempdir()) / f"pccl-gpu-{member.address.rpartition(':')[2]}-{os.getppid()}"
    dist.init_process_group("pccl", init_method=f"file://{store}", rank=member.rank, world_size=2)
    yield dist
    dist.destroy_process_group()


def torch_distributed(member: Member) -> None:
    """The backend of torch.distributed: calls on tensors that lie together and not, futures, and gradients of DDP."""
    torch = member.torch
    with process_group(member) as dist:
        calls_of_torch(member, dist)
        gradients_of_torch(member, torch)


def calls_of_torch(member: Member, dist: Any) -> None:
    torch = member.torch
    count = 1_000_000
    own, expected = member.filled(count, "float32"), (torch.arange(count) % 61 * 2 + 1).to(torch.float32)
    summed, turned = own.clone(), own.clone().view(1000, 1000).t()
    dist.all_reduce(summed)
    dist.all_reduce(turned)
    future = dist.all_reduce(own.clone(), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    both = torch.zeros(2 * count, device=member.device)
    dist.all_gather_into_tensor(both, own)
    parts = [torch.zeros_like(own) for _ in range(2)]
    dist.all_gather(parts, own)
    part = torch.zeros(count, device=member.device)
    dist.reduce_scatter_tensor(part, both)
    member.same(summed, expected)
    member.same(turned, expected.view(1000, 1000).t())
    member.same(future.wait(), expected * 2)
    member.same(both, torch.cat([torch.arange(count) % 61, torch.arange(count) % 61 + 1]).to(torch.float32))
    member.same(torch.cat(parts), both)
    member.same(part, 2 * both[member.rank * count : (member.rank + 1) * count])


def gradients_of_torch(member: Member, torch: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10)).to(member.device)
    replicated = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
    gradients = []
    for rank in range(2):
        input = torch.full((8, 300), 0.01 * (rank + 1), device=member.device)
        model.zero_grad()
        model(input).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    model.zero_grad()
    replicated(torch.full((8, 300), 0.01 * (member.rank + 1), device=member.device)).sum().backward()
    for parameter, one, other in zip(model.parameters(), *gradients, strict=True):
        torch.testing.assert_close(parameter.grad, (one + other) / 2)


def replicated(member: Member) -> None:
    """Training with DDP: as in one process."""
    with process_group(member):
        data_parallel = importlib.import_module("data_parallel")
        as_in_one_process(member, data_parallel.replicated(member.device), data_parallel.reference(2, member.device))


def fully_sharded(member: Member) -> None:
    """Training with `fully_shard` (FSDP2): as in one process."""
    with process_group(member):
        data_parallel = importlib.import_module("data_parallel")
        found = data_parallel.sharded(1, member.device)
        as_in_one_process(member, found, data_parallel.reference(2, member.device))
        assert found.shards[0] == ((17, 8) if member.rank == 0 else (16, 8)), "each member has one half"


def as_in_one_process(member: Member, found: Any, expected: Any) -> None:
    """Losses and parameters are near those of one process with the data of both, and the same bits on both members."""
    torch = member.torch
    losses = torch.tensor(found.losses, dtype=torch.float64)
    member.comm.all_reduce(losses, op=ReduceOp.AVG)
    torch.testing.assert_close(losses, torch.tensor(expected.losses, dtype=torch.float64), rtol=1e-3, atol=1e-5)
    for name, value in expected.whole.items():
        assert found.whole[name].device == value.device
        torch.testing.assert_close(found.whole[name], value, rtol=1e-3, atol=1e-4)
        member.agree(found.whole[name])


@contextlib.contextmanager
def new_run(member: Member) -> Iterator[str]:
    """The master of another run of both, in the process of member 0."""
    port = member.torch.zeros(1, dtype=member.torch.int64)
    with contextlib.ExitStack() as stack:
        if member.rank == 0:
            port[0] = stack.enter_context(pccl.MasterNode("127.0.0.1:0", heartbeat_limit=30)).port
        member.comm.broadcast(port, root=0)
        yield f"127.0.0.1:{int(port)}"
        member.comm.barrier()


def diloco(member: Member) -> None:
    """Outer steps with the outer state at the GPU and on the host: the same bits, and near those of the CPU."""
    reference = importlib.import_module("diloco_reference")
    every, rounds = 3, 4
    for kind, steps in (
        ("DiLoCo", reference.simulate([[0, 1]] * rounds, every=every)),
        ("AsyncDiLoCo", reference.simulate_async([[0, 1]] * rounds, every=every, finishes=True)),
    ):
        *_, expected = steps
        found = [outer_steps(member, kind, place, every, rounds) for place in (member.device, "cpu")]
        near(member, found[0], expected)
        member.same(found[1], found[0])
        member.agree(found[0])


def outer_steps(member: Member, kind: str, place: str, every: int, rounds: int) -> Any:
    """Trains from the beginning, with the outer state at this place; gives its parameters in the end."""
    reference, classes = importlib.import_module("diloco_reference"), importlib.import_module("pccl.diloco")
    model = reference.make_model().to(member.device)
    optimizer = reference.make_optimizer(model)
    with new_run(member) as master:
        with getattr(classes, kind)(model, Communicator(master), optimizer, sync_every=every, peers=2, device=place) as trainer:
            for outer in range(rounds):
                assert trainer.outer_step == outer
                outer_step(member, reference, trainer, model, optimizer, every)
        assert trainer.outer.parameters.device.type == place
        member.same(member.torch.from_numpy(reference.flat(model)), trainer.outer.parameters)
    return trainer.outer.parameters


def outer_step(member: Member, reference: Any, trainer: Any, model: Any, optimizer: Any, every: int) -> Any:
    """The inner steps before it, too."""
    outer = trainer.outer_step
    for step in range(every):
        reference.inner_step(model, optimizer, member.rank, outer, step)
        done = trainer.step()
    assert done is not None
    assert done.repaired_bytes == 0
    return done


def near(member: Member, found: Any, expected: Any) -> None:
    """Where there is no GPU, bit for bit; a GPU adds up the products of the inner steps in another order."""
    expected = member.torch.from_numpy(expected)
    if member.device == "cpu":
        member.same(found, expected)
    member.torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def diloco_joiner(member: Member) -> None:
    """Member 1 comes later, with another model, and gets the state; outer state at the GPU and on the host."""
    reference, classes = importlib.import_module("diloco_reference"), importlib.import_module("pccl.diloco")
    every = 2
    for place in (member.device, "cpu"):
        model = reference.make_model(seed=1 if member.rank == 0 else 9).to(member.device)
        optimizer = reference.make_optimizer(model)
        with new_run(member) as master:
            with contextlib.ExitStack() as stack:
                trainer = classes.DiLoCo(model, Communicator(master), optimizer, sync_every=every, device=place)
                if member.rank == 0:
                    stack.enter_context(trainer)
                    for _ in range(2):
                        outer_step(member, reference, trainer, model, optimizer, every)
                    member.comm.barrier()
                    while not outer_step(member, reference, trainer, model, optimizer, every).admitted:
                        pass
                else:
                    member.comm.barrier()
                    stack.enter_context(trainer)
                alone = trainer.outer_step
                member.agree(member.torch.from_numpy(reference.flat(model)))
                for _ in range(2):
                    assert outer_step(member, reference, trainer, model, optimizer, every).world_size == 2
            for tensor in (trainer.outer.parameters, trainer.outer.momentum):
                member.agree(tensor)
            *_, expected = reference.simulate([[0]] * alone + [[0, 1]] * 2, every=every)
            near(member, trainer.outer.parameters, expected)


def snapshots(member: Member) -> None:
    """Snapshots of tensors at the GPU, beside work on a stream of the program's own, restored to them divided anew."""
    torch, state = member.torch, importlib.import_module("pccl.state")
    whole = torch.randn(401, 300, generator=torch.Generator().manual_seed(1))
    mine = slice(0, 201) if member.rank == 0 else slice(201, 401)
    options = {"snapshots": state.Snapshots(copies=1, holder=False)}
    at_gpu = member.device != "cpu"
    stream = torch.cuda.Stream() if at_gpu else contextlib.nullcontext()
    with torch.cuda.stream(stream) if at_gpu else stream:
        tensor = whole[mine].to(member.device) - 5
        if at_gpu:
            torch.cuda._sleep(200_000_000)  # what comes next is late
        tensor += 5
        expected = whole - 5 + 5
        member.comm.snapshot({"weight": tensor}, step=3, shards={"weight": (whole.shape, (mine.start, 0))}, **options)
        tensor.zero_()
    assert member.comm.wait_for_snapshot()
    other = slice(0, 100) if member.rank == 0 else slice(100, 401)
    target = torch.zeros(other.stop - other.start, 300, device=member.device)
    found = member.comm.restore({"weight": target}, shards={"weight": (whole.shape, (other.start, 0))}, **options)
    assert found is not None
    assert found.step == 3
    member.same(target, expected[other])
    member.comm.barrier()
    member.comm.drop_snapshots()


def sharded_snapshots(member: Member) -> None:
    """A model under FSDP2 at the GPU whose member 1 is lost: member 0 goes on with all of the state, from the last snapshot."""
    torch, elastic = member.torch, importlib.import_module("pccl.distributed")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        raise SkippedError(f"torch {torch.__version__}, and Elastic takes sharded models from 2.13 on")
    fsdp, meshes = importlib.import_module("torch.distributed.fsdp"), importlib.import_module("torch.distributed.device_mesh")
    with process_group(member) as dist:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(300, 401), torch.nn.ReLU(), torch.nn.Linear(401, 10)).to(member.device)
        fsdp.fully_shard(model, mesh=meshes.init_device_mesh(torch.device(member.device).type, (2,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        snapshots = elastic.Snapshots(every=2, copies=1, holder=False)
        run = elastic.Elastic(model, optimizer, step=0, snapshots=snapshots)
        whole: dict[str, Any] = {}
        while run.step < 8:
            changed = run.sync()
            if run.step == 4 and not changed:
                assert run.wait_for_snapshot()
                whole = {name: parameter.full_tensor().clone() for name, parameter in model.named_parameters()}
            if member.rank == 1 and run.step == 5:
                member.comm.barrier()
                member.verdict.send("ok")
                os.kill(os.getpid(), signal.SIGKILL)
            if run.step == 5 and dist.get_world_size() == 2:
                member.comm.barrier()
            if changed and run.step:
                assert run.step == 4
                for name, parameter in model.named_parameters():
                    assert parameter.device.type == torch.device(member.device).type
                    member.same(parameter.full_tensor(), whole[name])
            try:
                loss = model(torch.full((8, 300), 0.01 * (dist.get_rank() + run.step), device=member.device)).square().sum()
                optimizer.zero_grad()
                loss.backward()
            except elastic.PeerLostError:
                continue
            optimizer.step()
            run.step += 1
        assert dist.get_world_size() == 1
        run.close()
