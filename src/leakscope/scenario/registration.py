"""The public functions by which a module outside leakscope registers components of its own, each under a new name."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from leakscope.attacks.attack import Attack
from leakscope.attacks.null import BASELINES
from leakscope.attacks.recipes import ATTACKS
from leakscope.core.errors import InputError, first_line
from leakscope.core.plugins import register
from leakscope.data import SOURCES, Source
from leakscope.defences import DEFENCES, Defence
from leakscope.metrics import METRICS, Metric
from leakscope.models import MODELS, TEXT_MODELS
from leakscope.scenario.components import KINDS, file_fields

SUITE = "suite"  # in audits: all attacks of the fixed suite


def register_attack(name: str, recipe: Callable[..., Attack]) -> None:
    """Register an attack: a function or dataclass whose arguments are settings, all with defaults, and whose result is an `Attack`."""
    _check_settings("attack", name, recipe)
    register("attack", ATTACKS, name, recipe, taken=(*BASELINES, SUITE))


def register_defence(name: str, defence: Callable[..., Defence]) -> None:
    """Register a defence on the update: a frozen dataclass with `protect_update`, and `reveal` if attackers can use what it does."""
    if not (hasattr(defence, "protect_update") or hasattr(defence, "protect_and_remember")):
        raise InputError(f"defence {name!r}: a class with the method protect_update is needed, got {defence!r:.80}")
    _check_settings("defences", name, defence)
    register("defence", DEFENCES, name, defence)


def register_data(name: str, source: Source) -> None:
    """Register a data set: where its files are looked for and how they are read, or a function `make` that builds it."""
    if not isinstance(source, Source) or not (source.forms or source.make):
        raise InputError(f"data set {name!r}: a leakscope.data.Source with forms or make is needed, got {source!r:.80}")
    register("data set", SOURCES, name, source)


def register_model(name: str, builder: Callable[..., nn.Module]) -> None:
    """Register a network: a function of `input_shape`, `classes` and settings with defaults that returns an `nn.Module`.

    One over tokens also takes `vocabulary`, and `padding` if it can mask that token; both come from the data.
    """
    _check_settings("model", name, builder)
    text = "vocabulary" in inspect.signature(builder).parameters
    mine, other = (TEXT_MODELS, MODELS) if text else (MODELS, TEXT_MODELS)
    register("model", mine, name, builder, taken=other)


def register_metric(metric: Metric) -> None:
    """Register a metric, under its own name; a scenario asks for it in `metrics`."""
    if not isinstance(metric, Metric):
        raise InputError(f"a leakscope.metrics.Metric is needed, got {type(metric).__name__}")
    register("metric", METRICS, metric.name, metric)


def _check_settings(field: str, name: str, make: Callable[..., object]) -> None:
    """Refuse a component whose settings a file could not give."""
    kind = KINDS[field]
    if not callable(make):
        raise InputError(f"{kind.name} {name!r}: a function or class is needed, got {type(make).__name__}")
    try:
        fields = file_fields(make, kind.hidden)
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"{kind.name} {name!r}: its settings cannot be read ({first_line(error)})") from None
    lacking = [key for key, (_, default) in fields.items() if default is ...]
    if lacking:
        raise InputError(f"{kind.name} {name!r}: its setting {lacking[0]!r} needs a default")
