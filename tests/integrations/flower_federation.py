"""A program that a test starts: a Flower federation on its own simulation engine, with a client that fails in round 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(directory: Path) -> None:
    """Train three rounds, record them, and write down how it went."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from torch import nn

    from leakscope.integrations.flower import record
    from leakscope.store.recorder import Recorder, Recording

    clients, server = ClientApp(), ServerApp()

    @clients.train()
    def train(message: Any, context: Any) -> Any:
        own, number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        if (own, number) == (1, 2):
            raise RuntimeError("battery empty")
        module = nn.Linear(4, 2)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = torch.rand(5, 4), torch.randint(2, (5,))
        nn.functional.cross_entropy(module(x), y).backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        metrics = MetricRecord({"num-examples": 5, "partition-id": own})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        del context
        recorder = Recorder(Recording(directory=directory / "captures"))
        strategy = record(FedAvg(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3), recorder)
        made = strategy.start(grid=grid, initial_arrays=ArrayRecord(nn.Linear(4, 2).state_dict()), num_rounds=3)
        told = {"rounds": len(made.train_metrics_clientapp), "written": recorder.written}
        (directory / "told.json").write_text(json.dumps(told))

    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(server_app=server, client_app=clients, num_supernodes=3, backend_config=resources)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
