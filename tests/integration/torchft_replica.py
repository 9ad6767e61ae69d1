"""A replica that trains by torchft's Manager over pccl's process group: replica.py LIGHTHOUSE NUMBER [kill].

Each step it contributes 2**NUMBER, so that the sum names who is in it. With "kill" it is killed in a step of three, while the
others wait for it.
"""

import os
import signal
import sys
import zlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager

import pccl.torchft

lighthouse, number = sys.argv[1], int(sys.argv[2])
LIMIT = timedelta(seconds=20)
torch.set_num_threads(1)
weights = torch.zeros(100_000)


def load(state: dict[str, torch.Tensor]) -> None:
    weights.copy_(state["weights"])


store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=pccl.torchft.ProcessGroup(timeout=LIMIT),
    load_state_dict=load,
    state_dict=lambda: {"weights": weights},
    min_replica_size=2,
    use_async_quorum=False,
    init_sync=False,  # all begin with the same weights
    timeout=LIMIT,
    quorum_timeout=LIMIT,
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    lighthouse_addr=lighthouse,
    replica_id=f"replica_{number}",
    hostname="127.0.0.1",
)
while True:
    manager.start_quorum()
    step, replicas = manager.current_step(), manager.num_participants()
    if sys.argv[3:] == ["kill"] and replicas == 3 and step > 2:
        print(f"replica {number} dies in step {step}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    gradient = torch.full_like(weights, 2.0**number)
    manager.allreduce(gradient).wait()
    if not manager.should_commit():
        print(f"replica {number} drops step {step} of {replicas}", flush=True)
        continue
    total = round(gradient[0].item() * replicas)
    weights += gradient * (step % 7)
    print(f"replica {number} did step {step} of {replicas}: sum {total}, weights {zlib.crc32(weights.numpy()):08x}", flush=True)
