"""CUDA graphs: the kernels of a function are recorded once and replayed in one launch.

A step of a small network is thousands of short kernels, which Python launches more slowly than the device runs them. A CUDA graph
replays the same kernels with the same bits. Only for functions with fixed shapes that never branch on the value of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leakscope.core.tree import fill, flattened, tensors

P = TypeVar("P")
V = TypeVar("V")
WARM_UP = 2  # calls before recording, in which libraries initialise
LEFT_FREE = 0.5  # of the card: a recording keeps the memory of its tensors
FETCHING = (torch.tensor, torch.as_tensor, Tensor.to, Tensor.cuda)


@dataclass(frozen=True, slots=True)
class Recording(Generic[V]):
    """Recorded kernels: their input and output tensors, and the constants they read."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    form: V
    constants: Sequence[Tensor | None]

    def __call__(self, *new: object) -> V:
        """Return the function of these arguments, which have the shapes of the recording."""
        for place, value in zip(self.inputs, tensors(new), strict=True):
            place.copy_(value)
        with torch.cuda.device(self.inputs[0].device):
            self.graph.replay()
        return fill(self.form, [t.clone() for t in self.outputs])


def recorded(f: Callable[..., V], arguments: tuple[object, ...]) -> Callable[..., V] | None:
    """Return `f` as a recording; None if the card is half full or if `f` does something forbidden while recording."""
    torch.cuda.empty_cache()  # what is cached is free
    free, total = torch.cuda.mem_get_info(next(tensors(arguments)).device)
    if free < LEFT_FREE * total:
        return None
    try:
        return captured(f, arguments)
    except Exception:  # CUDA has no error class for this; run directly, the function raises its own errors
        return None


def captured(f: Callable[..., V], arguments: tuple[object, ...]) -> Recording[V]:
    """Return `f` recorded with these arguments, whose tensors are on one CUDA device; without gradients."""
    flat_f, form = flattened(f, arguments)
    inputs = tuple(t.clone() for t in tensors(arguments))
    device = inputs[0].device
    # a failed recording must leave the stream unchanged
    with torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                with Fetched() as constants:
                    flat_f(inputs)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.empty_cache()  # a recording has memory of its own
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording), Fetched(constants.values) as constants:
            outputs = flat_f(inputs)
    return Recording(recording, inputs, tuple(outputs), form[0], constants.values)


class NotRecordableError(Exception):
    """A function that reads a tensor on the host, branches on one, or needs more memory than the device has left."""


def record_update(
    step: Callable[[V], None], value: V, constants: Sequence[Tensor | None], pool: torch.cuda._POOL_HANDLE | None = None
) -> Callable[[], None]:
    """Return a launch that does `step(value)` in the memory of the tensors of `value`; `NotRecordableError` if it cannot be recorded.

    `step` may replace or overwrite tensors of its argument. It must have run before on the same shapes under `Fetched`, which
    gives `constants`. Recordings with one `pool` share memory and must not run at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    device = next(tensors(value)).device
    torch.cuda.empty_cache()  # a recording has memory of its own
    try:
        with (
            torch.no_grad(),
            torch.cuda.device(device),
            torch.cuda.stream(torch.cuda.current_stream(device)),  # unchanged, even after a failed recording
            torch.cuda.graph(graph, pool=pool),
            Fetched(constants),
        ):
            update_in_place(step, value)
    except Exception as error:  # CUDA has no error class for this; run directly, the step raises its own errors
        raise NotRecordableError((str(error).strip() or type(error).__name__).splitlines()[0]) from None

    def play() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return play


def update_in_place(step: Callable[[V], None], value: V) -> None:
    """Run `step` on a value and copy the tensors it replaced into the memory of the old ones."""
    places = list(tensors(value))
    storages = {t.untyped_storage().data_ptr() for t in places}
    if len(storages) < len(places):
        raise ValueError("two tensors of the value share their memory: writing one would change the other")
    copy = fill(value, places)
    step(copy)
    changed = [(old, new) for old, new in zip(places, tensors(copy), strict=True) if new is not old]
    changed = [(old, new.clone() if new.untyped_storage().data_ptr() in storages else new) for old, new in changed]
    for old, new in changed:
        old.copy_(new)


def side_by_side(f: Callable[[P], V], parts: Sequence[P], streams: int) -> list[V]:
    """Return `f` of every part, recorded on several streams: small kernels leave most of a card idle."""
    main = torch.cuda.current_stream()
    lanes = [torch.cuda.Stream() for _ in range(min(streams, len(parts)))]
    for lane in lanes:
        lane.wait_stream(main)
    results = []
    for number, part in enumerate(parts):
        with torch.cuda.stream(lanes[number % len(lanes)]):
            results.append(f(part))
    for lane in lanes:
        main.wait_stream(lane)
    return results


class Fetched(TorchFunctionMode):
    """Records tensors that a function copies from the host, in order; while recording it returns those of an earlier call.

    A function must create the same constants in the same order in every call.
    """

    def __init__(self, earlier: Sequence[Tensor | None] | None = None) -> None:
        """Keep what is fetched, or return what was fetched `earlier`."""
        super().__init__()
        self.earlier, self.values = earlier, list[Tensor | None]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function, or return what it fetched in the earlier call."""
        del types
        if func not in FETCHING:
            return func(*args, **(kwargs or {}))
        known = None if self.earlier is None else self.earlier[len(self.values)]
        value = func(*args, **(kwargs or {})) if known is None else known
        self.values.append(value if known is not None or crossed(args[0], value) else None)
        return value


def crossed(source: object, value: Tensor) -> bool:
    """Return whether a value was copied to the device from the host."""
    return value.is_cuda and not (isinstance(source, Tensor) and source.is_cuda)
