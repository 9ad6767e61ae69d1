"""Lightning Fabric: a loop of its own."""

import common
import torch
import torch.distributed as dist


def main() -> None:
    if common.BACKEND == "pccl":
        dist.init_process_group("pccl")
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    fabric = Fabric(accelerator="cpu", devices=common.MEMBERS, strategy=DDPStrategy(process_group_backend=common.BACKEND))
    fabric.launch()
    model = common.classifier()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    sums = []
    for step in common.steps(model, optimizer):
        x, y = common.batch(step, dist.get_rank())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        common.step_ends(step, loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            sums.append(fabric.all_reduce(torch.ones(1), reduce_op="mean").item())
            assert fabric.all_gather(torch.ones(1)).numel() == dist.get_world_size()
    fabric.save(common.REPORTS / "fabric.ckpt", {"model": model, "step": common.STEPS})
    common.finish(model, means=sums)


if __name__ == "__main__":
    main()
