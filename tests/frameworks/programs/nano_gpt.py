"""The shape of nanoGPT's train.py: gradient accumulation over DDP, a master process, a hand-made schedule.

With NANOGPT=/path/to/a/checkout it runs that train.py itself, with the three lines that name a GPU changed to the CPU.
"""

import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATION = 2


class Block(nn.Module):
    """Causal attention and a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), -math.inf), 1)
        y = self.first(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self, vocabulary: int = 32, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(32, width)
        self.blocks = nn.Sequential(*(Block(width, 2) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return nn.functional.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), targets.flatten())


def tokens(step: int, part: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * part + rank)
    rows = (torch.randint(0, 32, (8, 1), generator=generator) + torch.arange(17) * 3) % 32
    return rows[:, :-1], rows[:, 1:]


def rate(step: int) -> float:
    return 1e-2 * (step + 1) / 3 if step < 3 else 1e-3 + 4.5e-3 * (1 + math.cos(math.pi * (step - 3) / (common.STEPS - 3)))


def main() -> None:
    dist.init_process_group(common.BACKEND)
    torch.manual_seed(1337)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    for step in range(common.STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        for part in range(ACCUMULATION):
            model.require_backward_grad_sync = part == ACCUMULATION - 1
            loss = model(*tokens(step, part, dist.get_rank())) / ACCUMULATION
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        common.step_ends(step, loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    common.finish(model)
    dist.destroy_process_group()


def checkout(path: Path) -> None:
    """Runs the train.py of a checkout on random characters; the report holds the losses that it prints."""
    folder = common.REPORTS / f"nanogpt-{os.getpid()}"
    subprocess.run(["cp", "-r", str(path), str(folder)], check=True)
    script = folder / "train.py"
    text = (
        script.read_text()
        .replace("device = f'cuda:{ddp_local_rank}'", "device = 'cpu'")
        .replace("torch.cuda.set_device(device)", "pass")
    )
    text = text.replace("device_ids=[ddp_local_rank]", "device_ids=None")
    script.write_text(text + "\nimport common; common.finish(model)\n")
    data = folder / "data" / "made"
    data.mkdir()
    made = torch.randint(0, 65, (20_000,), generator=torch.Generator().manual_seed(0)).to(torch.uint16).numpy()
    made.tofile(data / "train.bin")
    made.tofile(data / "val.bin")
    os.chdir(folder)
    options = {
        "backend": common.BACKEND, "dataset": "made", "compile": False, "device": "cpu", "dtype": "float32", "eval_iters": 1,
        "eval_interval": 100, "log_interval": 1, "block_size": 32, "batch_size": 4, "n_layer": 2, "n_head": 2, "n_embd": 32,
        "max_iters": common.STEPS, "gradient_accumulation_steps": 2 * common.MEMBERS, "out_dir": str(folder / "out"),
    }  # fmt: skip
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in options.items())]
    sys.path.insert(0, str(folder))
    step = torch.optim.Optimizer.step
    print_losses(step)
    runpy.run_path(str(script), run_name="__main__")


def print_losses(step: object) -> None:
    """Counts optimizer steps, so that a rank can die in one."""
    count = iter(range(10**9))
    from torch.optim import AdamW

    original = AdamW.step

    def counted(self, *arguments, **more):
        norm = sum(
            float(p.grad.double().abs().sum()) for group in self.param_groups for p in group["params"] if p.grad is not None
        )
        common.step_ends(next(count), norm)
        return original(self, *arguments, **more)

    AdamW.step = counted


if __name__ == "__main__":
    if os.environ.get("NANOGPT"):
        checkout(Path(os.environ["NANOGPT"]))
    else:
        main()
