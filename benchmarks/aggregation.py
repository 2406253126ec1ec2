"""What attacks still get from the mean of K clients: exact attacks, update matching and label rules beside a null baseline.

    LEAKSCOPE_DATA=... python benchmarks/aggregation.py [--clients 1 2 5 20 100] [--trials 5] [--matching 3] [--local]
    LEAKSCOPE_DATA=... python benchmarks/aggregation.py --servers [NAME ...] [--clients 1 2 5 20 100] [--trials 5]

Every client holds 4 test images of Fashion-MNIST; the network is 784-1000-10 with torch's first weights, drawn for every trial. Shares
are of the images of all clients: for `division` and `ig` those that count as recovered (MSE at most 0.01 and SSIM at least 0.6, the rule
of every audit), for `peeling` those that are certified and within 1e-3 (root mean square) of the truth. `labels` is the share of all
labels that the rule `by_residual` reads from the mean, beside one that draws them. `class mean` knows every label and sees no update.
With `--local` clients send weights after 2 epochs of batches of 2 (SGD, rate 0.05), and matching simulates one step. With `--servers` the
table is of dishonest servers with 3,000 training images: imprint (1000 bins), trap weights (s = 0.7) and soliton biases (for as many
images), one model for all clients, and LOKI (16 bins a client, a model for each); their shares are of images within 1e-3, for LOKI, whose
scale is known up to a bin, within 3e-2. Fishing for class 0 (read by division, 8 times as many trials) reads at most one image a round, and
only if the sum holds one image of the class: `rounds` is the share of rounds in which it read one. With `inconsistent` one client gets an
imprint and the others dead weights; its share is of that client's images. Intervals: Student's t over trials.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.attacks import analytic, ig, peeling
from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import DEFAULT
from leakscope.attacks.labels import LABEL_RULES
from leakscope.attacks.null import class_mean, draw_labels
from leakscope.clients import Aggregation, Client
from leakscope.core import random
from leakscope.core.pairing import squared_distances
from leakscope.core.types import LocalTraining, make_batch, to_gradient
from leakscope.data import load
from leakscope.metrics.interval import estimate_mean
from leakscope.metrics.labels import label_overlap
from leakscope.models import Torch, build, draw_parameters
from leakscope.play import Exposure, attack, expose, judge, reconstruct
from leakscope.play.baselines import public_part
from leakscope.play.dishonest import expose_manipulated
from leakscope.servers.fishing import Fishing
from leakscope.servers.imprint import Imprint
from leakscope.servers.inconsistent import Inconsistent
from leakscope.servers.loki import Loki
from leakscope.servers.manipulation import Manipulation
from leakscope.servers.soliton import SolitonBiases
from leakscope.servers.trap_weights import TrapWeights

EACH, NEAR, PUBLIC = 4, 1e-3, 3_000
LOCAL = LocalTraining(epochs=2, batch_size=2, rate=0.05)


def exposed(clients: int, trials: int, *, dropouts: int, local: bool) -> Exposure:
    """Return what the server sees of `trials` federations of so many clients."""
    data = load("fashion_mnist")
    model = build("mlp", data.input_shape, data.classes, {"hidden": (1000,)})
    behind = clients * EACH
    index = torch.arange(trials * behind) % data.size("test")
    batch = make_batch(
        data.pictures("test", index.tolist()).unflatten(0, (trials, behind)),
        data.labels("test", index.tolist()).unflatten(0, (trials, behind)),
        classes=data.classes,
    )
    seeds = range(trials)
    client = Client(local=LOCAL if local else None, aggregate=Aggregation(clients, dropouts))
    return expose(model, client, draw_parameters(model, Torch(), random.key(list(seeds))), batch, list(seeds))


def share(values: Tensor) -> str:
    """Return the mean over all examples of T trials with its interval."""
    found = estimate_mean(values.double(), torch.ones_like(values, dtype=torch.bool), within=(0.0, 1.0))
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def recovered(exposure: Exposure, method: Attack) -> str:
    """Return the share of images that an attack recovers."""
    return share(attack(exposure, method).recovered)


def certified(exposure: Exposure) -> str:
    """Return the share of images that peeling certifies; a certified image that is none of the batch ends the benchmark."""
    result = attack(exposure, peeling())
    assert result.reconstruction.proved is not None
    proved = result.reconstruction.proved.gather(1, result.scores.pairing)
    if not bool((result.scores.mse.sqrt()[proved] <= NEAR).all()):
        raise SystemExit("a false certificate")
    return share(proved)


def labels(exposure: Exposure) -> str:
    """Return the shares of labels by the rule and by drawing them."""
    truth, knowledge = exposure.batch, exposure.knowledge
    seen, local = exposure.observation, exposure.knowledge.local
    gradient = seen if local is None else to_gradient(seen, float(local.length([knowledge.samples])[0]))
    read = LABEL_RULES["by_residual"](exposure.model, gradient, knowledge, random.key(list(exposure.seeds)))
    drawn = draw_labels(exposure.seeds, knowledge.samples, knowledge.classes)
    return " | ".join(share(label_overlap(truth.labels, each, truth.mask)[:, None]) for each in (read, drawn))


def read_images(manipulation: Manipulation, clients: int, number: int, rms: float) -> Tensor:
    """Return which images of one sum a dishonest server reads."""
    data, total = load("fashion_mnist"), clients * EACH
    index = [i % data.size("test") for i in range(number * total, (number + 1) * total)]
    batch = make_batch(data.pictures("test", index)[None], data.labels("test", index)[None], classes=data.classes)
    model = build("mlp", data.input_shape, data.classes, {"hidden": (1000,)})
    given = (
        draw_parameters(model, Torch(), random.key([number])),
        batch,
        data.pictures("train", range(PUBLIC)),
        [number],
    )
    exposure = expose_manipulated(manipulation, model, Client(aggregate=clients), *given)
    guess = reconstruct(exposure, manipulation, DEFAULT)
    return squared_distances(batch.inputs[0].double(), guess.inputs[0].double()).sqrt().amin(1) <= rms


SERVERS: dict[str, Callable[[int], Manipulation]] = {  # by the number of clients
    "imprint": lambda _: Imprint(),
    "trap": lambda _: TrapWeights(factor=0.7),
    "soliton": lambda clients: SolitonBiases(batch=clients * EACH),
    "loki": lambda clients: Loki(clients, units=4 * EACH),
    "fishing": lambda _: Fishing(reader=analytic()),
    "inconsistent": lambda clients: Inconsistent(clients) if clients > 1 else Imprint(),
}


def manipulated(name: str, clients: int, trials: int) -> str:
    """Return the share of images that a dishonest server reads from the mean, and for fishing of rounds in which it reads one."""
    trials, rms = 8 * trials if name == "fishing" else trials, 3e-2 if name == "loki" else NEAR
    near = torch.stack([read_images(SERVERS[name](clients), clients, number, rms) for number in range(trials)])
    near = near[:, :EACH] if name == "inconsistent" else near
    return f"{share(near)}; rounds {share(near.any(1, keepdim=True))}" if name == "fishing" else share(near)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 2, 5, 20, 100])
    parser.add_argument("--dropouts", type=float, default=0.0, help="share of clients that drop out, rounded down")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--matching", type=int, default=3, help="trials of ig; 0 leaves it out")
    parser.add_argument("--iterations", type=int, default=300, help="of ig")
    parser.add_argument("--local", action="store_true", help="clients send weights after local training")
    parser.add_argument(
        "--servers", nargs="*", choices=list(SERVERS), help="dishonest servers in the place of the honest one"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.servers is not None:
        names = asked.servers or list(SERVERS)
        print(
            f"n = {asked.trials} trials\n\n| clients | images | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}"
        )
        for K in asked.clients:
            cells = " | ".join(manipulated(name, K, asked.trials) for name in names)
            print(f"| {K} | {K * EACH} | {cells} |", flush=True)
        return
    public = class_mean(*public_part(load("fashion_mnist"), "test"), classes=10)
    print(
        f"n = {asked.trials} trials ({asked.matching} of ig)\n\n"
        "| clients | images | division | peeling | ig | class mean | labels | labels drawn |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for K in asked.clients:
        exposure = exposed(K, asked.trials, dropouts=int(asked.dropouts * K), local=asked.local)
        few = exposure.select(torch.arange(asked.matching))
        matched = recovered(few, ig(iterations=asked.iterations, labels="by_residual")) if asked.matching else "not run"
        known = exposure.with_labels().knowledge
        null = share(judge(exposure.batch, public.guess(known, exposure.trials)).recovered)
        cells = (recovered(exposure, analytic()), certified(exposure), matched, null, labels(exposure))
        print(f"| {K} | {exposure.batch.samples} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
