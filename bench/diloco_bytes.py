"""Backs "DiLoCo" of docs/benchmarks.md: how many times fewer bytes DiLoCo sends than data parallelism.

Three peers on one host make one outer step of a model of a million parameters with `sync_every=100`, checks of parity left out,
against 100 reduces of all gradients in fp32.
"""

from __future__ import annotations

import argparse

import harness
import methods
from harness import Master, Peer, Report, Row

import pccl

EVERY = 100
"""Inner steps of an outer step whose bytes are counted."""

FEWER = {"none": 100, "int8": 390, "int4": 760, "e3m0": 760, "sparse": 5000}
"""By compression: so many times fewer bytes than data parallelism, within 5 %; the scales count."""


def worker(peer: Peer, address: str) -> dict[str, int]:
    """Returns what this peer sends for an outer step, by compression, and for a reduce of the gradients in fp32."""
    import torch

    from pccl.diloco import DiLoCo

    torch.set_num_threads(1)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.randn(128, 512)).square().mean().backward()
    sent: dict[str, int] = {}
    for compression in FEWER:
        comm = pccl.Communicator(address)
        with DiLoCo(model, comm, optimizer, sync_every=1, compression=compression, peers=peer.world) as diloco:
            optimizer.step()
            done = diloco.step()
            assert done is not None
            assert done.world_size == peer.world
            sent[compression] = done.tx_bytes
        peer.barrier.wait()
    comm = methods.join_run(address, peer.world)
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    sent["gradients"] = comm.all_reduce(gradients, op=pccl.ReduceOp.AVG).tx_bytes
    comm.close()
    peer.barrier.wait()
    return sent


def body(args: argparse.Namespace) -> Report:
    with Master() as master, harness.Fleet(worker, 3, address=master.address) as fleet:
        sent = fleet.results()[0]
    figures: list[Row] = []
    for compression, fewer in FEWER.items():
        ratio = EVERY * sent["gradients"] / sent[compression]
        what = f"bytes of data parallelism over those of DiLoCo, `sync_every={EVERY}`, compression {compression}"
        figures.append(harness.figure(what, f"{ratio:.0f} x", f"{0.95 * fewer:.0f} x", ratio >= 0.95 * fewer))
    return Report(figures)


if __name__ == "__main__":
    harness.measure(body, 1)
