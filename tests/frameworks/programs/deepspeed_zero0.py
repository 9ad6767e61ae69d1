"""DeepSpeed with ZeRO-0: its engine reduces the gradients."""

import os

import common
import deepspeed
import torch
import torch.distributed as dist


def main() -> None:
    deepspeed.init_distributed(dist_backend=common.BACKEND)
    model = common.classifier(norm=False)
    settings = {
        "train_micro_batch_size_per_gpu": 16,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": int(os.environ.get("ZERO_STAGE", "0"))},
    }
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    for step in common.steps(engine.module, getattr(optimizer, "optimizer", optimizer)):
        x, y = common.batch(step, dist.get_rank())
        loss = torch.nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        common.step_ends(step, loss.item())
        engine.step()
    common.finish(engine.module)


if __name__ == "__main__":
    main()
