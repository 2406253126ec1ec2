"""A federation in NVFlare's simulator whose server records what clients send: `python job.py CAPTURES WORKSPACE`."""

from __future__ import annotations

import sys
from pathlib import Path

from digits import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from leakscope import Recording
from leakscope.integrations.nvflare import record

CLIENTS, ROUNDS = 2, 2


def main(captures: str, workspace: str) -> None:
    """Train for a few rounds and record every client in each."""
    recipe = FedAvgRecipe(name="digits", model=Net(), min_clients=CLIENTS, num_rounds=ROUNDS, train_script="client.py")
    record(recipe, Recording(directory=Path(captures)))
    recipe.execute(SimEnv(num_clients=CLIENTS, workspace_root=workspace))


if __name__ == "__main__":
    main(*sys.argv[1:])
