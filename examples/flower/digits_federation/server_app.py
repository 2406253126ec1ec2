"""The server: FedAvg, wrapped so that what each client sends is recorded."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_federation.task import network
from leakscope import Recording
from leakscope.integrations.flower import record

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the run's settings ask for."""
    torch.manual_seed(0)
    strategy = FedAvg(min_available_nodes=2)
    if captures := str(context.run_config["captures"]):
        strategy = record(strategy, Recording(directory=Path(captures), clients=2, most_bytes=2**28))
    net = network(str(context.run_config["network"]))
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=int(context.run_config["rounds"])
    )
    last = result.evaluate_metrics_clientapp.get(int(context.run_config["rounds"]))
    print(f"accuracy after {context.run_config['rounds']} rounds: {last['accuracy'] if last else 'none'}")
