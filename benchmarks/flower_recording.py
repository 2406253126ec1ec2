"""What recording costs a Flower round of the example, in one process: CPU seconds of rounds with and without it.

    python benchmarks/flower_recording.py [rounds]

Rounds in one process have no network and no Ray, so they are shorter than real ones and the share is an upper bound.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "integrations"), str(ROOT / "examples" / "flower")]


def main(rounds: int) -> None:
    from digits_federation.client_app import app
    from digits_federation.task import CLIENTS, Net
    from flower_grid import make_grid
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from leakscope.integrations.flower import record
    from leakscope.store.recorder import Recording

    logging.getLogger("flwr").setLevel(logging.ERROR)
    settings = {"local-epochs": 1, "batch-size": 8, "examples": 32, "learning-rate": 0.1, "defence": ""}

    def seconds(strategy: Any) -> float:
        began = time.process_time()
        grid = make_grid(app, CLIENTS, settings)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds)
        return (time.process_time() - began) / rounds

    seconds(FedAvg())
    plain, recorded, every = [], [], []
    for _ in range(5):
        plain.append(seconds(FedAvg()))
        with tempfile.TemporaryDirectory() as directory:
            recorded.append(seconds(record(FedAvg(), Recording(directory=Path(directory), clients=1))))
        with tempfile.TemporaryDirectory() as directory:
            every.append(seconds(record(FedAvg(), Recording(directory=Path(directory)))))
    base = statistics.median(plain)
    print(f"a round of {CLIENTS} clients: {1000 * base:.1f} ms of CPU")
    for name, times in (("one client a round", recorded), (f"all {CLIENTS} clients", every)):
        print(
            f"recording {name}: {1000 * (statistics.median(times) - base):+.1f} ms, {statistics.median(times) / base - 1:+.1%}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
