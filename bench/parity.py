"""What a parity check of a model costs, of a training step."""

from __future__ import annotations

import time

import harness
import methods
from harness import MIB, Master, Peer, Row

METHOD = """Peers on one host, each with one thread for torch and one for hashes. The step is forward, backward, all-reduce of all
gradients and an optimizer step of a stack of linear layers in fp32 on the batch. Check = check_parity of all parameters, which
are equal; of it, hash = SharedState.hash. Medians; a check's time is that of the slowest peer."""

WIDTH = 1024


def worker(peer: Peer, address: str, layers: int, batch: int, blocks: int) -> dict[str, list[float]]:
    import torch

    import pccl

    torch.set_num_threads(1)
    comm = methods.join_run(address, peer.world)
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch, WIDTH)
    named = {f"parameter/{name}": one.detach() for name, one in model.named_parameters()}
    state = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, name) for name, tensor in named.items()])

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        gradients = torch.cat([one.grad.reshape(-1) for one in model.parameters() if one.grad is not None])
        comm.all_reduce(gradients, op=pccl.ReduceOp.AVG)
        at = 0
        for one in model.parameters():
            one.grad = gradients[at : at + one.numel()].view_as(one)
            at += one.numel()
        optimizer.step()

    calls = {"step": step, "check": lambda: comm.check_parity(model), "hash": state.hash}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(blocks + 1):
        for name, call in calls.items():
            peer.barrier.wait()
            begin = time.perf_counter()
            call()
            if block:  # the first one is warm-up
                times[name].append(time.perf_counter() - begin)
    comm.close()
    return times


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--layers", type=int, default=29, help=f"of {WIDTH} x {WIDTH} elements: 29 have 30 million parameters")
    parser.add_argument("--batch", type=int, default=1024, help="rows of a batch; a step of large models takes seconds on a CPU")
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="2 layers and 3 blocks")
    args = parser.parse_args()
    if args.quick:
        args.layers, args.blocks = 2, 3
    where = harness.machine()
    with (
        Master() as master,
        harness.Fleet(
            worker, args.peers, address=master.address, layers=args.layers, batch=args.batch, blocks=args.blocks
        ) as fleet,
    ):
        by_rank = fleet.results()
    median = {
        name: harness.summary([max(values) for values in zip(*(times[name] for times in by_rank), strict=True)])["median"]
        for name in by_rank[0]
    }
    size = args.layers * (WIDTH * WIDTH + WIDTH) * 4
    share = median["check"] / (median["check"] + median["step"])
    row: Row = {"model": f"{size / 4e6:.1f} M", "step ms": median["step"] * 1e3, "check ms": median["check"] * 1e3}
    row |= {"hash ms": median["hash"] * 1e3, "hash GB/s": size / median["hash"] / 1e9, "% of a step": 100 * share}
    what = f"parity check of {size / MIB:.0f} MiB in every step"
    bars = [harness.bar(what, "below 1 % of the time", f"{100 * share:.2f} %", share < 0.01)]
    harness.report(args, "parity", METHOD, where, [row], bars)


if __name__ == "__main__":
    harness.main(run)
