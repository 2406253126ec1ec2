"""The accuracy of a trained federation under a defence, as in the columns of CPL's tables 7a and 8.

The settings are a training file (docs/reference/training.md) with the extra keys of `Points`.
"""

from __future__ import annotations

import copy
import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.scenario.axes import parse_path, set_path
from leakscope_papers.files import file_dataclass
from leakscope_papers.programs.rows import Keep, Place, Say
from leakscope_papers.programs.settings import read_settings


@file_dataclass
class Points:
    """Which trainings are run: every combination of the values in `vary` (path -> values) with every seed."""

    seeds: tuple[int, ...]
    vary: Mapping[str, list[Plain]] = field(default_factory=dict)
    said: Mapping[str, Plain] = field(default_factory=dict)  # added to every row's place, to select readings


def accuracy(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store for every point the final test accuracy of the global model, one number for each seed; no number if it diverged."""
    chosen, names = read_settings(Points, settings), {each.name for each in fields(Points)}
    training = {name: value for name, value in settings.items() if name not in names}
    for point in points(chosen.vary):
        key = ", ".join(f"{path}={value}" for path, value in point.items()) or "one"
        where = {**chosen.said, **point}
        if not keep.done(key, where):
            accuracies = [_trained({**at(training, point), "seed": seed}, say, device) for seed in chosen.seeds]
            keep.add(key, where, {"accuracy": accuracies})


def points(vary: Mapping[str, list[Plain]]) -> Iterator[Place]:
    """Yield every combination of the values, as path -> value.

    >>> list(points({"defences.0.sigma": [0.0, 0.1]}))
    [{'defences.0.sigma': 0.0}, {'defences.0.sigma': 0.1}]
    """
    for values in itertools.product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def at(settings: Mapping[str, object], point: Place) -> dict[str, object]:
    """Return the settings with the values of a point at their paths.

    >>> at({"defences": [{"name": "clip", "bound": 1}]}, {"defences.0.bound": 2})
    {'defences': [{'name': 'clip', 'bound': 2}]}
    """
    varied = copy.deepcopy(dict(settings))
    for path, value in point.items():
        problem = set_path(varied, parse_path(path), value)
        if problem:
            raise InputError(f"vary: {problem}")
    return varied


def _trained(settings: Mapping[str, object], say: Say, device: str) -> float:
    from leakscope.training.file import training_of
    from leakscope.training.run import run_training

    with tempfile.TemporaryDirectory() as scratch:
        result = run_training(training_of(settings), Path(scratch) / "training", device=device, say=say)
    if result.diverged:
        return math.nan
    measured = [point.accuracy.value for point in result.curve if point.accuracy is not None]
    return measured[-1] if measured else math.nan
