"""The server: FedAvg over adapters, wrapped so that what each client sends is recorded."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from leakscope import Recording
from leakscope.integrations.flower import record
from sonnets_federation.task import network, trained

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the run's settings ask for."""
    strategy, rounds = FedAvg(min_available_nodes=2), int(context.run_config["rounds"])
    if captures := str(context.run_config["captures"]):
        strategy = record(strategy, Recording(directory=Path(captures)))
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(trained(network())), num_rounds=rounds)
    last = result.evaluate_metrics_clientapp.get(rounds)
    print(f"accuracy after {rounds} rounds: {last['accuracy'] if last else 'none'}")
