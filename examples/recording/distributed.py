"""Federated averaging over torch.distributed: two processes, each a client; the first is also the server and records.

python distributed.py captures
leakscope audit captures --model loop:build
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from loop import build_network, mean_loss, record, train
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PROCESSES, ROUNDS = 2, 3


def with_weights(network: nn.Module, weights: torch.Tensor) -> nn.Module:
    """Return a copy of the network with these weights."""
    filled = copy.deepcopy(network)
    vector_to_parameters(weights, filled.parameters())
    return filled


def run(rank: int, rendezvous: str, directory: str) -> None:
    """Take part in all rounds; rank 0 sends the weights out, collects, records and averages."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=PROCESSES)
    network = build_network()
    for number in range(1, ROUNDS + 1):
        weights = parameters_to_vector(network.parameters()).detach()
        dist.broadcast(weights, src=0)
        before = with_weights(network, weights)
        after = with_weights(network, weights)
        train(after, client=rank)
        sent = parameters_to_vector(after.parameters()).detach()
        received = [torch.empty_like(sent) for _ in range(PROCESSES)] if rank == 0 else None
        dist.gather(sent, received, dst=0)
        if received is not None:
            for client, update in enumerate(received):
                record(before, with_weights(network, update), directory=directory, number=number, client=client)
            network = with_weights(network, torch.stack(received).mean(0))
    if rank == 0:
        print(f"loss {mean_loss(build_network()):.2f} before, {mean_loss(network):.2f} after {ROUNDS} rounds")
    dist.barrier()  # none leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both processes run on this machine
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (f"{folder}/rendezvous", (sys.argv[1:] or ["captures"])[0]), nprocs=PROCESSES)
