"""Ray Train: a TorchTrainer whose process group is pccl. Ray itself starts all workers anew when one is lost."""

import os
import tempfile
from pathlib import Path


def train(settings: dict) -> None:
    os.environ.update(settings["environment"])
    import common
    import ray.train
    import ray.train.torch
    import torch
    import torch.distributed as dist

    context = ray.train.get_context()
    common.FIRST_RANK = context.get_world_rank()
    marker = common.REPORTS / "killed"
    restarted = marker.exists()
    if restarted:
        common.KILL_RANK = -1
    model = ray.train.torch.prepare_model(common.classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(common.STEPS):
        x, y = common.batch(step, dist.get_rank())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if common.FIRST_RANK == common.KILL_RANK and step == common.KILL_STEP:
            marker.touch()
        common.step_ends(step, loss.item())
        optimizer.step()
    common.finish(model, restarted=restarted)


def main() -> None:
    import common
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    if common.BACKEND == "pccl":
        import pccl.distributed  # noqa: F401  # registers the backend
    names = ("BACKEND", "STEPS", "MEMBERS", "KILL_RANK", "REPORTS", "PYTHONPATH", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    ray.init(num_cpus=common.MEMBERS, include_dashboard=False, runtime_env={"env_vars": environment}, log_to_driver=True)
    with tempfile.TemporaryDirectory() as storage:
        trainer = TorchTrainer(
            train,
            train_loop_config={"environment": environment},
            torch_config=TorchConfig(backend=common.BACKEND, timeout_s=60),
            scaling_config=ScalingConfig(num_workers=common.MEMBERS, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=str(Path(storage)), failure_config=FailureConfig(max_failures=1)),
        )
        result = trainer.fit()
        assert result.error is None, result.error
    ray.shutdown()


if __name__ == "__main__":
    main()
