"""Inputs of chosen layers during a call of the network: read, for priors on its features, or given in the place of its own.

`noting(names)` opens a call; an `apply` that knows its layers fills the dict by `note_inputs`. A layer that runs twice keeps its
last input. `giving(layer, value)` runs the network from a layer on: what lies before it runs too, but is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

_RUNNING: ContextVar[dict[str, Tensor | None] | None] = ContextVar("layers_of_the_running_call", default=None)
_GIVEN: ContextVar[tuple[str, Tensor] | None] = ContextVar("input_given_to_a_layer", default=None)


@contextmanager
def noting(names: Sequence[str]) -> Iterator[dict[str, Tensor | None]]:
    """Yield the inputs of the named layers, None until the network ran; other threads are not affected."""
    inputs: dict[str, Tensor | None] = dict.fromkeys(names)
    token = _RUNNING.set(inputs)
    try:
        yield inputs
    finally:
        _RUNNING.reset(token)


@contextmanager
def giving(layer: str, value: Tensor) -> Iterator[None]:
    """Give a layer another input; other threads are not affected."""
    token = _GIVEN.set((layer, value))
    try:
        yield
    finally:
        _GIVEN.reset(token)


@contextmanager
def note_inputs(module: nn.Module) -> Iterator[None]:
    """Write the inputs of the layers that `noting` names, and replace the one that `giving` names, while the module runs."""
    inputs, given = _RUNNING.get(), _GIVEN.get()
    with ExitStack() as hooks:
        if given is not None:
            layer = module.get_submodule(given[0])
            hooks.enter_context(layer.register_forward_pre_hook(lambda *_: given[1]))
        for name in inputs or ():
            hooks.enter_context(module.get_submodule(name).register_forward_pre_hook(_note(inputs or {}, name)))
        yield


def _note(inputs: dict[str, Tensor | None], name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(layer: nn.Module, args: tuple[Tensor, ...]) -> None:  # noqa: ARG001  torch gives both
        inputs[name] = args[0]

    return note
