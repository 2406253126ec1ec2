"""The accuracy of a trained federation under a defence: what the columns of CPL's tables 7a and 8 print.

The settings are a training file (docs/federation.md) with keys of their own: `vary`, path of a field -> its values, every
combination of which is one row; `seeds`, each of which is one training and one number of the row; `said`, what the place of
every row holds besides, so that a reading of the item can tell that it is meant.
"""

from __future__ import annotations

import copy
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from leakscope.core.errors import InputError
from leakscope.scenario.axes import parse_path
from leakscope_papers.programs.rows import Keep, Place

NOT_TRAINING = ("vary", "seeds", "said")


def accuracy(settings: Mapping[str, Any], keep: Keep, say: Callable[[str], None], device: str) -> None:
    """Keep for every point the test accuracy of the global model after the last round, one number for each seed.

    A training that diverges leaves no model, so it counts as no number, whatever was measured before.
    """
    training = {name: value for name, value in settings.items() if name not in NOT_TRAINING}
    for point in points(settings.get("vary", {})):
        key = ", ".join(f"{path}={value}" for path, value in point.items()) or "one"
        where = {**settings.get("said", {}), **point}
        if not keep.done(key, where):
            accuracies = [_trained({**at(training, point), "seed": seed}, say, device) for seed in settings["seeds"]]
            keep.add(key, where, {"accuracy": accuracies})


def points(vary: Mapping[str, list[Any]]) -> Iterator[Place]:
    """Yield every combination of the values, as path -> value.

    >>> list(points({"defences.0.sigma": [0.0, 0.1]}))
    [{'defences.0.sigma': 0.0}, {'defences.0.sigma': 0.1}]
    """
    for values in itertools.product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def at(settings: Mapping[str, Any], point: Place) -> dict[str, Any]:
    """Return the settings with the values of a point at their paths.

    >>> at({"defences": [{"name": "clip", "bound": 1}]}, {"defences.0.bound": 2})
    {'defences': [{'name': 'clip', 'bound': 2}]}
    """
    varied = copy.deepcopy(dict(settings))
    for path, value in point.items():
        *way, last = parse_path(path)
        node: Any = varied
        try:
            for part in way:
                node = node[part]
            node[last] = value
        except (KeyError, IndexError, TypeError):
            raise InputError(f"vary: there is no {path!r} in the training to vary") from None
    return varied


def _trained(settings: Mapping[str, Any], say: Callable[[str], None], device: str) -> float:
    from leakscope.training.file import training_of
    from leakscope.training.run import run_training

    with tempfile.TemporaryDirectory() as scratch:
        result = run_training(training_of(settings), Path(scratch) / "training", device=device, say=say)
    if result.diverged:
        return math.nan
    measured = [point.accuracy.value for point in result.curve if point.accuracy is not None]
    return measured[-1] if measured else math.nan
