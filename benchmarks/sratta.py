"""SRATTA on secure sums of FedAvg: samples certified, pairs linked to one client, what a censoring client saves, and what that costs.

    LEAKSCOPE_DATA=... python benchmarks/sratta.py [--data mnist] [--trials 3] [--censor 0 2 4]

5 clients of 8 test images each train for 10 rounds (2 epochs of batches of 4, SGD at 0.5) from torch's first weights of 784-600-10; the
server sees the mean of every round. `certified` is the share of images that were certified; `false` counts certified images that are
farther than 1e-2 (root mean square) from any; `linked` is the share of pairs of certified images of one client that were linked, `wrong`
the number of linked pairs of two clients. `accuracy` is that of the last round's model on 1,000 other images. Intervals: Student's t
over trials.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from leakscope.attacks.exact.sratta import link_samples
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.pairing import squared_distances
from leakscope.core.types import LocalTraining, make_batch
from leakscope.data import load
from leakscope.data.dataset import Dataset
from leakscope.metrics.interval import estimate_mean
from leakscope.models import Torch, build, draw_parameters

CLIENTS, EACH, ROUNDS, NEAR = 5, 8, 10, 1e-2
LOCAL = LocalTraining(epochs=2, batch_size=4, rate=0.5)


def attacked(data: Dataset, trial: int, censor: int) -> tuple[float, float, float, float, float]:
    """Return the shares certified, linked, and the accuracy, then the false certificates and wrong links of one federation."""
    model = build("mlp", data.input_shape, data.classes, {"hidden": (600,)})
    index = range(trial * CLIENTS * EACH, (trial + 1) * CLIENTS * EACH)
    batch = make_batch(data.pictures("test", index)[None], data.labels("test", index)[None], classes=data.classes)
    client = Client(local=LOCAL, rounds=ROUNDS, server_rate=1.0, aggregate=CLIENTS, censor=censor)
    seen = client.observe(model, draw_parameters(model, Torch(), random.key([trial])), batch, [trial])
    found = link_samples(model, seen, attacker_knowledge(model, client, batch))
    last = {name: value[0] for name, value in seen.rounds[-1].sent.items()}
    x, y = data.pictures("train", range(1000)), data.labels("train", range(1000))
    right = model.apply(last, model.buffers, x, random.key(0))[0].argmax(1) == y
    accuracy = float(right.double().mean())
    if not len(found.inputs):
        return 0.0, float("nan"), accuracy, 0.0, 0.0
    distance, place = squared_distances(batch.inputs[0].double(), found.inputs).sqrt().min(0)
    true = distance <= NEAR
    same = (place[:, None] // EACH == place // EACH).triu(1)
    linked = (found.clients[:, None] == found.clients).triu(1)
    share = float((linked & same).sum() / same.sum()) if bool(same.any()) else float("nan")
    certified = len(place[true].unique()) / (CLIENTS * EACH)
    return certified, share, accuracy, float((~true).sum()), float((linked & ~same).sum())


def shown(values: Tensor) -> str:
    """Return the mean over the trials that have one, with its interval."""
    counted = values.isfinite()
    if not bool(counted.any()):
        return "none"
    found = estimate_mean(values[counted, None], counted[counted, None], within=(0.0, 1.0))
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--censor", type=int, nargs="*", default=[0, 2, 4])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = load(asked.data)
    print(f"{asked.data}, n = {asked.trials} federations\n")
    print("| censor | certified | false | linked | wrong | accuracy |\n|---|---|---|---|---|---|")
    for censor in asked.censor:
        rows = torch.tensor([attacked(data, trial, censor) for trial in range(asked.trials)], dtype=torch.float64)
        certified, linked, accuracy = (shown(rows[:, column]) for column in range(3))
        false, wrong = rows[:, 3:].sum(0).long().tolist()
        print(f"| {censor} | {certified} | {false} | {linked} | {wrong} | {accuracy} |", flush=True)


if __name__ == "__main__":
    main()
