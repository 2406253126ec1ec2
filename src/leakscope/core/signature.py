"""Functions that share settings: one lists them, the others copy them with different defaults."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")


def settings_of(
    base: Callable[..., object], *, without: tuple[str, ...] = (), **defaults: object
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds the settings of `base` with other `defaults`; those in `without` are hidden and keep their default."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kept = [each for each in _keywords(function) if each.kind is each.KEYWORD_ONLY]
        names = {*without, *(each.name for each in kept)}
        shared = [each for each in _keywords(base) if each.kind is each.KEYWORD_ONLY and each.name not in names]
        shared = [each.replace(default=defaults.get(each.name, each.default)) for each in shared]
        hints = {**get_type_hints(base), **get_type_hints(function)}
        signature = inspect.Signature([*kept, *shared], return_annotation=hints["return"])

        @functools.wraps(function)
        def filled(*args: P.args, **given: P.kwargs) -> R:
            signature.bind(*args, **given)
            settings: dict[str, object] = {**defaults, **given}
            return function(*args, **settings)  # type: ignore[arg-type]

        filled.__annotations__ = {name: hints[name] for name in (*signature.parameters, "return")}
        filled.__signature__ = signature  # type: ignore[attr-defined]
        return filled

    return decorate


def _keywords(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
