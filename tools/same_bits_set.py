"""The fixed set of computations that `tools/same_bits.py` runs in two trees.

    python tools/same_bits_set.py OUT.safetensors [--only PATTERN]
    python tools/same_bits_set.py --list

The set uses the names that `leakscope` exports, the files that users write and the command line. Whatever else it needs is
in `PLACES`, newest place first: a module that moves gets one more place there.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import importlib
import inspect
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import leakscope

Case: TypeAlias = Callable[[Path], object]
Settings: TypeAlias = dict[str, Any]

PLACES = {
    "ATTACKS": ("leakscope.attacks:ATTACKS", "leakscope.attacks.recipes:ATTACKS"),
    "LABEL_RULES": ("leakscope.attacks:LABEL_RULES", "leakscope.attacks.labels:LABEL_RULES"),
    "DEFENCES": ("leakscope.defences:DEFENCES",),
    "MODELS": ("leakscope.models:MODELS", "leakscope.models.catalogue:MODELS"),
    "SERVERS": ("leakscope.federated:SERVERS", "leakscope.federated.servers:SERVERS"),
    "PrivateClient": ("leakscope.clients:PrivateClient", "leakscope.clients.private:PrivateClient"),
    "PUBLISHED": (
        "leakscope.auditing.suite:PUBLISHED",
        "leakscope.auditing.suite:PUBLISHED",
        "leakscope.audit:PUBLISHED",
        "leakscope.experiments.audit.suite:PUBLISHED",
    ),
    "Capture": ("leakscope.store:Capture", "leakscope.store.captures:Capture"),
    "write_capture": ("leakscope.store:write_capture", "leakscope.store.captures:write_capture"),
    "FrontierSettings": (
        "leakscope.studies.frontier:FrontierSettings",
        "leakscope.experiments.frontier:FrontierSettings",
    ),
    "measure_frontier": (
        "leakscope.studies.frontier:measure_frontier",
        "leakscope.experiments.frontier:measure_frontier",
    ),
    "attacker_knowledge": ("leakscope.clients:attacker_knowledge", "leakscope.clients:told"),
    "knowledge_of_defences": ("leakscope.clients:knowledge_of_defences", "leakscope.clients:tell_defences"),
    "membership": ("leakscope.inference:membership", "leakscope.inference.membership:membership"),
    "trace": ("leakscope.inference:trace", "leakscope.inference.tracing:trace"),
    "fit_property": ("leakscope.inference:fit_property", "leakscope.inference.property:fit_property"),
    "infer_property": ("leakscope.inference:infer_property", "leakscope.inference.property:infer_property"),
    "app": ("leakscope.cli:app", "leakscope.cli.app:app"),
}

SCENARIO: Settings = {
    "data": {"name": "digits", "part": "test", "samples": 1},
    "model": {"name": "lenet_cpl", "width": 4},
    "weights": {"name": "uniform", "a": 0.5},
    "trials": 2,
    "baselines": [],
    "precision": {"form": "native"},
}
DENSE = {"name": "mlp", "hidden": [12], "activation": "sigmoid"}
TWO = {"name": "digits", "part": "test", "samples": 2}
LOCAL = {"epochs": 2, "batch_size": 1, "rate": 0.05}
BY_UPDATE: Settings = {"data": TWO, "client": {"local": LOCAL}, "knowledge": {"labels": True, "local": True}}
POLICY = {"on_data": {"policy": "3-1-7"}}
HEAD = {"on_model": {"alpha2": 0.1, "bits": 8}}

# what an attack needs besides SCENARIO
NEEDS: dict[str, Settings] = {
    "ig_update": BY_UPDATE,
    "sme": BY_UPDATE,
    "dlfa": BY_UPDATE,
    "ig_policy": {"client": POLICY, "knowledge": {"defence": True}},
    "spn_unaware": {"client": HEAD},
    "spn_aware": {"client": HEAD},
    "spn_head": {"client": HEAD},
    "spn_pull": {"client": HEAD},
    "analytic": {"model": DENSE},
    "linear_system": {"model": DENSE},
}
OF_ATTACK: dict[str, Settings] = {"spn_aware": {"bits": 8}}

# what each label rule is run on
RULES: dict[str, Settings] = {
    "known": {"data": TWO, "knowledge": {"labels": True}},
    "cpl": {"data": {**TWO, "samples": 1}},
    "counts": {"data": {**TWO, "samples": 4}},
}

STRENGTHS: dict[str, Settings] = {
    "gaussian_noise": {"sigma": 0.01},
    "laplace_noise": {"sigma": 0.01},
    "clip": {"bound": 0.5},
    "sparsify": {"drop": 0.7},
    "deep_compression": {"drop": 0.7, "momentum": 0.5},
    "random_mask": {"share": 0.5},
    "chosen_noise": {"sigma": 0.01},
    "quantise": {"bits": 4},
    "low_rank": {"rank": 1},
}
STARTS = ["normal", "uniform", "patterned", "patterned4", "dark", "light", "insider"]
DISTANCES = ["squared_l2", "l2", "l1", "cosine", "cosine_per_tensor", "angle", "angle_per_tensor", "disagreement"]
PRIORS = ["total_variation", "label_regulariser", "norm", "box_penalty"]
FORMS = ["native", "split", "im2col", "parallel", "channels_last", "loop"]
INITS = ["uniform", "pytorch", "kaiming", "lecun"]

TRAINING: Settings = {
    "name": "small",
    "data": {"name": "digits", "examples": 120},
    "partition": {"name": "dirichlet", "clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "client": {"local": {"epochs": 2, "batch_size": 8, "rate": 0.3}},
    "selection": {"name": "share", "share": 0.5},
    "rounds": 2,
}
CONVOLUTIONS: Settings = {"model": {"name": "lenet_cpl", "width": 4}, "weights": {"name": "uniform", "a": 0.5}}
SHARES_GRADIENTS: Settings = {"client": {}, "server": {"name": "fedsgd", "rate": 0.5}}
TRAININGS: dict[str, Settings] = {
    "spn": {"client": {**TRAINING["client"], **HEAD}, "server": {"name": "round_robin"}},
    "spn_equal": {"client": {**TRAINING["client"], **HEAD}, "server": {"name": "deltas", "equal": True}},
    "ppdl": {"defences": [{"name": "sparsify", "drop": 0.9}], "server": {"name": "deltas"}},
    "compressed": {"defences": [{"name": "deep_compression", "drop": 0.9}], **SHARES_GRADIENTS},
    "dp": {"defences": [{"name": "clip", "bound": 0.5}, {"name": "gaussian_noise", "sigma": 0.01}]},
    "policy": {"client": {**TRAINING["client"], **POLICY}},
    "decay": {"decay": {"factor": 0.5, "at": [1]}, "selection": {"name": "everyone", "replies": 0.7}},
    "prox_adam": {
        "client": {"local": {"epochs": 1, "batch_size": 8, "rate": 0.01, "optimiser": "adam", "proximal": 0.1}},
        "partition": {"name": "iid", "clients": 4},
        "selection": {"name": "count", "number": 2},
    },
    "batch_norm": {
        "data": {"name": "digits", "examples": 60, "size": 12},
        "model": {"name": "convnet", "width": 2},
        "norm": "train",
        "precision": {"form": "native"},
    },
    **{
        f"form_{form}": {**CONVOLUTIONS, "precision": {"form": form}}
        for form in ("native", "by_client", "split", "bands", "windows", "im2col")
    },
}
SERVERS: dict[str, Settings] = {"fedsgd": SHARES_GRADIENTS}  # what a server needs besides TRAINING

SEARCH: Settings = {
    "data": "digits",
    "model": "lenet_dlg",
    "width": 2,
    "candidates": 2,
    "keep": 2,
    "images": 2,
    "first": 0,
    "stride": 1,
    "points": 3,
    "epochs": 1,
    "share": 0.05,
    "batches": 1,
    "batch_size": 10,
    "group": 2,
    "threshold": None,
}
AUDIT: Settings = {"model": DENSE, "data": {"name": "digits", "part": "test"}}
AUDITS: dict[str, Settings] = {
    "plain": {"model": {"name": "lenet_dlg", "width": 2}},
    "sparse": {"defences": [{"name": "sparsify", "drop": 0.5}]},
    "local": {"client": {"epochs": 2, "batch_size": 1, "rate": 0.05}, "examples": 2},
    "noise": {"defences": [{"name": "clip", "bound": 0.5}, {"name": "gaussian_noise", "sigma": 0.01}]},
    "policy": {"on_data": {"policy": "3-1-7"}},
    "head": {"on_model": {"alpha2": 0.1, "bits": 8}},
}
PLENTY = 600  # minutes: no clock decides anything

MODEL_SETTINGS: dict[str, Settings] = {
    "mlp": {"hidden": [8]},
    "mlp_sme": {"hidden": [8]},
    "lenet_dlg": {"width": 3},
    "lenet_cpl": {"width": 3},
    "dlnet": {"width": 3},
    "resnet20": {"width": 2},
    "resnet20_dlg": {"width": 2, "batch_statistics": True},
    "resnet20_cpl": {"width": 2},
    "resnet8": {"width": 2, "hidden": 8},
    "vit": {"width": 8, "heads": 2, "depth": 1},
    "alexnet": {"width": 2, "hidden": 8},
    "vgg16": {"width": 4, "groups": 2, "hidden": 8},
    "convnet": {"width": 2},
}

TIMINGS = ("seconds", "minutes")
WORDS = ("grade", "worst", "name", "finding", "policy", "hybrid", "front", "strength")  # other text may be worded anew


# -- finding and flattening


def locate(name: str) -> Any:
    """Return what a name stands for, from the first of its places that this tree has."""
    for place in PLACES[name]:
        module_name, _, attribute = place.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            continue
        found = getattr(module, attribute, None)
        if found is not None and not inspect.ismodule(found):
            return found
    raise LookupError(
        f"{name} is in none of {', '.join(PLACES[name])}: add its new place to PLACES in {Path(__file__).name}"
    )


def flatten(value: object, name: str) -> dict[str, Tensor]:
    """Return a nested result as named tensors: whole numbers as int64, floats as float64, text as bytes, None as nothing."""
    if isinstance(value, Mapping):
        parts = [flatten(item, f"{name}/{key}") for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [flatten(item, f"{name}/{place}") for place, item in enumerate(value)]
    else:
        return {name: as_tensor(value)}
    return {key: tensor for part in parts for key, tensor in part.items()}


def as_tensor(value: object) -> Tensor:
    """Return one value as a tensor of its own memory."""
    if isinstance(value, Tensor):
        return value.detach().cpu().contiguous().clone()
    if value is None:
        return torch.empty(0, dtype=torch.float64)
    if isinstance(value, str):
        return torch.tensor(list(value.encode()), dtype=torch.uint8)
    if isinstance(value, bool | int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    raise TypeError(f"a result of type {type(value).__name__} cannot be compared")


def numbers_of(value: object, key: str = "") -> object:
    """Return what is compared of a JSON file: numbers and the names in WORDS; no timings, no sentences."""
    if isinstance(value, Mapping):
        return {name: numbers_of(item, name) for name, item in value.items() if name not in TIMINGS}
    if isinstance(value, list):
        return [numbers_of(item, key) for item in value]
    return value if key in WORDS or not isinstance(value, str) else "text"


# -- scenarios


def play_scenario(changes: Mapping[str, Any], place: Path) -> object:
    """Return the records and reconstructions of a scenario."""
    scenario = leakscope.scenario_of({**SCENARIO, **changes})
    leakscope.run_scenario(scenario, place / "run", workers=1, measure=False)
    run = leakscope.Run.open(place / "run")
    return [[read_record(run, record) for record in run.records(cell=cell.id)] for cell in run.cells()]


def read_record(run: Any, record: Any) -> object:
    """Return what is compared of one trial."""
    names = ("number", "seed", "outcome", "iterations", "evaluations", "mismatch", "label_overlap", "learned")
    scores = ("label", "guess", "mse", "psnr", "ssim", "label_correct", "recovered", "finite")
    return {
        "record": {name: getattr(record, name) for name in names},
        "samples": [{name: getattr(sample, name) for name in scores} for sample in record.samples],
        "tensors": run.tensors(record.trial),
    }


def short(attack: str, iterations: int = 3) -> Settings:
    """Return an attack as a file says it, with few iterations where it has any."""
    known = inspect.signature(locate("ATTACKS")[attack]).parameters
    return {
        "name": attack,
        **({"iterations": iterations} if "iterations" in known else {}),
        **OF_ATTACK.get(attack, {}),
    }


def attack_cases() -> dict[str, Case]:
    """Return every recipe of the table."""
    return {
        f"attack/{name}": partial(play_scenario, {**NEEDS.get(name, {}), "attack": short(name)})
        for name in locate("ATTACKS")
    }


def label_cases() -> dict[str, Case]:
    """Return every label rule, and labels that are optimised."""
    return {
        f"labels/{rule}": partial(play_scenario, {**RULES.get(rule, {}), "attack": {**short("ig", 1), "labels": rule}})
        for rule in (*locate("LABEL_RULES"), "joint", "auto")
    }


def defence_cases() -> dict[str, Case]:
    """Return every defence against both attackers: on the update, the data and the model, and what else hides."""
    cpl = short("cpl", 1)
    stacks = {name: [{"name": name, **STRENGTHS.get(name, {})}] for name in locate("DEFENCES")}
    stacks["clip_each_and_noise"] = [
        {"name": "clip", "bound": 0.3, "each": True},
        {"name": "gaussian_noise", "sigma": 0.01, "each": True},
    ]
    changes: dict[str, Settings] = {name: {"defences": stack, "attack": cpl} for name, stack in stacks.items()}
    steps = {**LOCAL, "optimiser": "sgd", "momentum": 0.5, "weight_decay": 0.01}
    changes |= {
        "on_data": {"client": POLICY, "attack": short("ig")},
        "on_model": {"client": HEAD, "attack": cpl},
        "dropout": {"model": {"name": "lenet_cpl", "width": 4, "dropout": 0.3}, "attack": cpl},
        "local_steps": {"data": TWO, "client": {"local": steps}, "attack": short("ig")},
        "local_adam": {"data": TWO, "client": {"local": {**LOCAL, "optimiser": "adam"}}, "attack": short("ig")},
        "rounds": {
            "client": {"rounds": 2, "server_rate": 0.1},
            "defences": [{"name": "deep_compression", "drop": 0.5}],
            "attack": cpl,
        },
        "noisy_rounds": {
            "client": {"rounds": 3},
            "defences": [{"name": "gaussian_noise", "sigma": 0.01}],
            "attack": cpl,
        },
    }
    return {f"defence/{name}": partial(play_scenario, change) for name, change in changes.items()}


def piece_cases() -> dict[str, Case]:
    """Return the pieces that attacks are made of, and the forms in which they run."""
    own = {"name": "matching", "iterations": 2, "optimiser": "adam"}
    table: dict[str, Settings] = {
        "start": {"attack": own, "grid": {"attack.start": STARTS}},
        "objective": {"attack": own, "grid": {"attack.objective": DISTANCES}},
        "optimiser": {"attack": own, "grid": {"attack.optimiser": ["lbfgs", "adam", "adagrad", "sgd"]}},
        "priors": {"attack": own, "grid": {"attack.priors": [[name] for name in PRIORS]}},
        "rules": {"attack": {**own, "signed": True, "boxed": True, "restarts": 2, "film_end": True, "patience": 1}},
        "weights": {"attack": own, "grid": {"weights": INITS}},
        "loss": {
            "attack": {**own, "labels": "joint"},
            "grid": {"client.loss": ["cross_entropy", "mse", "softmax_cross_entropy"]},
        },
        "float64": {"attack": short("cpl", 1), "precision": {"form": "native", "dtype": "float64"}},
        "data": {"attack": own, "grid": {"data.mix": ["given", "random", "equal", "two"]}, "data": TWO},
        "scaling": {"attack": own, "data": {**TWO, "scaling": "statistics", "order": "shuffled", "size": 10}},
    }
    cases: dict[str, Case] = {f"piece/{name}": partial(play_scenario, change) for name, change in table.items()}
    for form in FORMS:
        small = {"model": {"name": "lenet_dlg", "width": 2}, "precision": {"form": form}}
        change = {**small, "attack": short("ig", 45)}  # from call 40 on it is traced
        cases[f"form/{form}"] = partial(play_scenario, change)
    return cases


def sweep_cases() -> dict[str, Case]:
    """Return a sweep over strengths with several attacks, all baselines and compaction."""
    sweep: Settings = {
        "attacks": [short("cpl", 1), short("ig")],
        "defences": [{"name": "gaussian_noise", "sigma": 0.0}],
        "grid": {"defences.0.sigma": [0.0, 0.001, 0.1]},
        "baselines": ["class_mean", "prior_only", "nearest_public"],
        "seeds": [0, 1],
    }
    ending: Settings = {
        "attack": {**short("cpl", 30), "threshold": 0.05},
        "trials": 12,
        "precision": {"form": "native", "chunk": 6},
    }
    return {"sweep/noise": partial(play_scenario, sweep), "sweep/chunks": partial(play_scenario, ending)}


# -- models and clients


def observed(client: Any, model: Any, pictures: Tensor, labels: Tensor) -> Any:
    """Return the private batch of two clients and what the server sees of them."""
    batch = leakscope.make_batch(pictures, labels, classes=10)
    weights = leakscope.draw_parameters(model, leakscope.Uniform(0.3), leakscope.key([0, 1]))
    return batch, client.observe(model, weights, batch, [0, 1])


def digits(number: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return pictures and labels of so many clients."""
    data = leakscope.load("digits")
    places = range(number * samples)
    pictures, labels = data.pictures("test", places), torch.as_tensor(data.labels("test", places))
    return pictures.reshape(number, samples, 1, 8, 8), labels.reshape(number, samples)


def play_model(name: str, place: Path) -> object:
    """Return the gradients of a network on digits of 16 x 16."""
    del place
    pictures, labels = digits(2, 2)
    pictures = pictures.repeat_interleave(2, -1).repeat_interleave(2, -2)
    model = leakscope.build(name, (1, 16, 16), 10, MODEL_SETTINGS.get(name, {}))
    _, seen = observed(leakscope.Client(), model, pictures, labels)
    return {"first": dict(model.parameters), "sent": dict(seen.rounds[0].sent)}


def play_private(local: Settings | None, place: Path) -> object:
    """Return the update of a client that trains with DP-SGD."""
    del place
    model = leakscope.build("lenet_cpl", (1, 8, 8), 10, {"width": 3})
    training = None if local is None else leakscope.LocalTraining(**local)
    client = locate("PrivateClient")(bound=0.5, multiplier=0.3, local=training)
    return dict(observed(client, model, *digits(2, 4))[1].rounds[0].sent)


def play_by_hand(place: Path) -> object:
    """Return the attack of docs/reference/api.md, step by step through the exported names."""
    del place
    client = leakscope.Client(defences=(leakscope.Clip(1.0), leakscope.GaussianNoise(1e-3)))
    model = leakscope.build("lenet_cpl", (1, 8, 8), 10, {"width": 4})
    private, seen = observed(client, model, *digits(2, 1))
    knowledge = locate("knowledge_of_defences")(locate("attacker_knowledge")(model, client, private), client, seen)
    attack = leakscope.aware(leakscope.cpl(iterations=2), knowledge)
    made = attack.run(model, seen, knowledge, [0, 1], leakscope.Execution(form="native"))
    scores = leakscope.score(private.inputs, private.labels, made.inputs, made.labels, mask=private.mask)
    names = ("inputs", "labels", "start", "mismatch", "iterations", "evaluations", "outcome", "trace")
    return {**{name: getattr(made, name) for name in names}, "mse": scores.mse, "ssim": scores.ssim}


def model_cases() -> dict[str, Case]:
    """Return every network, private clients, and the way step by step."""
    cases: dict[str, Case] = {f"model/{name}": partial(play_model, name) for name in locate("MODELS")}
    cases["client/dp_gradient"] = partial(play_private, None)
    cases["client/dp_steps"] = partial(play_private, {"epochs": 2, "batch_size": 2, "rate": 0.1})
    cases["api/by_hand"] = play_by_hand
    return cases


# -- the command line


def command(*words: object) -> str:
    """Return what a leakscope command prints to its standard output; a command that fails is an error."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(locate("app"), [str(word) for word in words])
    if done.exit_code != 0:
        raise RuntimeError(f"leakscope {words[0]} ended with {done.exit_code}: {done.output}") from done.exception
    return done.stdout


def write_yaml(settings: Mapping[str, Any], path: Path) -> Path:
    """Write a file as a user would; return where it is."""
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")
    return path


def train(changes: Mapping[str, Any], place: Path) -> object:
    """Return the learning curve and every tensor that a training leaves behind."""
    file = write_yaml({**TRAINING, **changes}, place / "training.yaml")
    command("train", file, "--out", place / "out", "--keep-private", "--quiet")
    tensors = {
        str(path.relative_to(place / "out")): load_file(path) for path in sorted((place / "out").rglob("*.safetensors"))
    }
    with (place / "out" / "curve.csv").open(encoding="utf-8") as file_of_curve:
        rows = [
            {name: float(text) if text else None for name, text in row.items()} for row in csv.DictReader(file_of_curve)
        ]
    return {"curve": rows, "tensors": tensors}


def training_cases() -> dict[str, Case]:
    """Return a federation of every server, and of every protocol and form."""
    needs = {name: {"server": {"name": name}, **SERVERS.get(name, {})} for name in locate("SERVERS")}
    return {f"federation/{name}": partial(train, change) for name, change in (needs | TRAININGS).items()}


def search_policies(changes: Mapping[str, Any], place: Path) -> object:
    """Return privacy and accuracy scores of a few policies."""
    file = write_yaml({**SEARCH, **changes}, place / "search.yaml")
    words = ("--out", place / "out", "--engine", "serial", "--json", "--quiet")
    return numbers_of(json.loads(command("search", file, *words)))


def characteristic(place: Path) -> object:
    """Return the privacy-preserving characteristic of a small sweep, accuracies trained."""
    noise = {"defences": [{"name": "gaussian_noise", "sigma": 0.0}], "knowledge": {"defence": False}, "trials": 4}
    along = {"attack": short("cpl", 1), "model": DENSE, "grid": {"defences.0.sigma": [0.01, 1.0]}}
    play_scenario({**noise, **along}, place)
    training = {**TRAINING, **SHARES_GRADIENTS, "model": DENSE}
    file = write_yaml(training, place / "training.yaml")
    command("ppc", place / "run", "--training", file, "--participants", 2, "--out", place / "ppc", "--quiet")
    return numbers_of(json.loads((place / "ppc" / "characteristics.json").read_text(encoding="utf-8"))["curves"])


@contextmanager
def short_attacks() -> Iterator[None]:
    """Make the published length of every attack of an audit so short that no audit looks at the clock."""
    published = locate("PUBLISHED")
    before = dict(published)
    published.update({name: 2 if name == "cpl" else 1 for name in before})
    try:
        yield
    finally:
        published.update(before)


def audit_file(changes: Mapping[str, Any], place: Path, *, clients: int = 4, remedies: bool = False) -> object:
    """Return the plain data of an audit of short attacks."""
    file = write_yaml({**AUDIT, **changes}, place / "audit.yaml")
    size = ("--minutes", PLENTY, "--clients", clients, "--remedies" if remedies else "--no-remedies")
    with short_attacks():
        command("audit", file, *size, "--out", place / "out", "--quiet")
    return numbers_of(json.loads((place / "out" / "audit.json").read_text(encoding="utf-8")))


def read_audit(found: Any) -> object:
    """Return what is compared of an audit: grade, measures, and what every attack gave."""
    rows = {run.name: {"inputs": run.reconstruction.inputs, "labels": run.reconstruction.labels} for run in found.runs}
    return {"grade": found.grade, "asr": found.measures.asr.value, "psnr": found.measures.psnr, "runs": rows}


def small_network() -> nn.Module:
    """Return a user's own network with fixed weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def audit_captures(place: Path) -> object:
    """Return grade, measures and guesses of an audit of recorded updates."""
    network, pictures, labels = small_network(), *digits(2, 1)
    weights = {name: value.detach() for name, value in network.named_parameters()}
    batch = leakscope.make_batch(pictures, labels, classes=10)
    model = leakscope.from_module(network, input_shape=(1, 8, 8))
    seen = leakscope.Client().observe(
        model, {name: value.expand(2, *value.shape) for name, value in weights.items()}, batch, [0, 1]
    )
    for number in range(2):
        sent = {name: value[number].contiguous() for name, value in seen.rounds[0].sent.items()}
        capture = locate("Capture")(
            round=1, client=str(number), before=weights, sent=sent, shares="gradient", partition=number, examples=1
        )
        locate("write_capture")(place / "captures", capture)
    target = leakscope.Target(model=network, input_shape=(1, 8, 8), truth=lambda part: (pictures[part], labels[part]))
    with short_attacks():
        found = leakscope.audit_captures(place / "captures", target, minutes=PLENTY, clients=2)
    return read_audit(found)


def audit_own(place: Path) -> object:
    """Return what `leakscope.audit` finds in a user's own network."""
    del place
    pictures, labels = digits(24, 1)
    given = (small_network(), "cross_entropy", pictures[:, 0], labels[:, 0])
    with short_attacks():
        found = leakscope.audit(*given, minutes=PLENTY, clients=4, remedies=False)
    return read_audit(found)


def peek(place: Path) -> object:
    """Return what `leakscope.peek` reconstructs, with its sweep over noise."""
    del place
    pictures, labels = digits(1, 2)
    found = leakscope.peek(
        small_network(), pictures[0], labels[0], iterations=2, execution=leakscope.Execution(form="native")
    )
    return {"inputs": found.inputs, "text": str(found)}


def frontier(place: Path) -> object:
    """Return accuracy and leakage of every point of a small frontier."""
    del place
    settings = locate("FrontierSettings")(clients=12, rounds=2, attacked=2, iterations=1, multipliers=(0.1,))
    return [
        {
            "accuracy": point.accuracy.value,
            "content": point.run.summary.content.value,
            "inputs": point.run.reconstruction.inputs,
        }
        for point in locate("measure_frontier")(settings).points
    ]


def infer(place: Path) -> object:
    """Return membership, tracing and property inference on made-up reconstructions of digits."""
    del place
    pictures, labels = digits(12, 2)
    noise = torch.rand(pictures.shape, generator=torch.Generator().manual_seed(0))
    guess, guessed = 0.6 * pictures + 0.4 * noise, (labels + (noise.flatten(2)[..., 0] < 0.4)) % 10
    member = locate("membership")(pictures, labels, guess, guessed, classes=10)
    traced = locate("trace")(pictures.flatten(0, 1), guess.flatten(0, 1)[::2], torch.arange(0, 24, 2), participants=3)
    update = {"w": pictures.flatten(1), "b": guess.flatten(1)[:, :5]}
    has = labels[:, 0] < 5
    classifier = locate("fit_property")(update, has)
    inferred = locate("infer_property")(classifier, update, has)
    return {
        "membership": {"value": member.distance.value, "low": member.distance.low, "each": member.each},
        "tracing": {"all": traced.all.value, "owner": traced.owner, "by": traced.all_by},
        "property": {"weight": classifier.weight, "bias": classifier.bias, "auc": inferred.auc},
    }


def study_cases() -> dict[str, Case]:
    """Return what stands above sweeps: searches, audits, peek, the frontier, characteristics, inference."""
    cases: dict[str, Case] = {f"audit/{name}": partial(audit_file, change) for name, change in AUDITS.items()}
    return cases | {
        "audit/remedies": partial(audit_file, {}, clients=6, remedies=True),
        "audit/captures": audit_captures,
        "audit/own": audit_own,
        "search/privacy": partial(search_policies, {}),
        "search/attack": partial(search_policies, {"score": "attack", "iterations": 2, "candidates": 1}),
        "study/ppc": characteristic,
        "study/frontier": frontier,
        "study/peek": peek,
        "study/inference": infer,
    }


# -- running


def all_cases() -> dict[str, Case]:
    """Return every case by its name."""
    makers = (
        attack_cases,
        label_cases,
        defence_cases,
        piece_cases,
        sweep_cases,
        model_cases,
        training_cases,
        study_cases,
    )
    return {name: case for make in makers for name, case in make().items()}


def chosen_cases(pattern: str) -> dict[str, Case]:
    """Return the cases whose name holds the pattern, or matches it as a glob."""
    return {name: case for name, case in all_cases().items() if fnmatch.fnmatch(name, f"*{pattern}*")}


def run_cases(cases: Mapping[str, Case]) -> tuple[dict[str, Tensor], dict[str, str], dict[str, float]]:
    """Return the tensors of all cases, the traceback of each case that failed, and the seconds of each."""
    tensors: dict[str, Tensor] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name, case in cases.items():
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="same-bits-") as place:
            try:
                tensors |= flatten(case(Path(place)), name)
            except Exception:  # whatever a refactoring breaks
                failed[name] = traceback.format_exc()
        seconds[name] = time.perf_counter() - began
    return tensors, failed, seconds


def main(words: Sequence[str] | None = None) -> int:
    """Run the set into a file, or list it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    cases = chosen_cases(given.only)
    if given.list or given.out is None:
        print("\n".join(cases))
        return 0
    tensors, failed, seconds = run_cases(cases)
    about = {"source": str(leakscope.__file__), "cases": list(cases), "failed": failed, "seconds": seconds}
    save_file(tensors, given.out, metadata={"about": json.dumps(about)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
