"""The forms of evaluating many trials: vmap (whole or split over cores), im2col, single trials in threads, a loop, compiled.

Every form computes the gradient of (mismatch + priors) with respect to the wanted unknowns of each trial. The fastest depends on
network, shape and device, so the engine measures (see `plan`). Always vmap(grad(f)): summing over a vmapped f and calling
backward gives wrong gradients through normalisation layers.

After a few calls the vmapped forms are traced into a flat graph of the same tensor operations: equal bits, without the cost of
the function transforms (half the time of a narrow batch). What depends on the facts alone is computed once (see `hoist`). On a
CUDA device a whole tick is recorded instead (see `tick`), with the trials of a loop on parallel streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from leakscope.attacks.objectives import reported
from leakscope.attacks.simulate import LocalSteps, simulator_kinds
from leakscope.attacks.view import Clock, Facts, View
from leakscope.core.differentiate import gradient_and_aux, plain_autograd
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, fill, take, tensors, trials
from leakscope.core.types import direction
from leakscope.kernels.compiling import copy_before_writing, cut_long_sums
from leakscope.kernels.cpu_graph import for_cpu
from leakscope.kernels.graph_cache import Flat, Key, Staged, find_graph, flat_graph, graph_key, keep_graph
from leakscope.kernels.heap import keep_freed
from leakscope.kernels.hoisting import bind, hoist
from leakscope.kernels.im2col import Im2col
from leakscope.kernels.lanes import lanes, padded, spare_lanes
from leakscope.kernels.memory import is_out_of_memory
from leakscope.kernels.recordings import side_by_side

V = TypeVar("V")
FORMS = ("native", "split", "im2col", "parallel", "channels_last", "loop", "compiled")
THREADED = ("parallel", "channels_last")  # forms that run the traced graph of a single trial on every core
ALONE = (*THREADED, "loop")  # forms that evaluate each trial by itself
ON_CUDA = ("native", "im2col", "loop", "compiled")  # forms for a CUDA device; the others are for the cores of a CPU
STREAMS = 8  # single trials that a recorded loop runs side by side
TRACE_AFTER = 40  # calls after which tracing (1 to 6 s, as long as 40 to 190 of them) pays in a long run
LONG_RUN = 10 * TRACE_AFTER  # evaluations of one


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Per trial: gradient of the total for each wanted unknown, the total, and the mismatch as reported."""

    gradient: Tree
    total: Tensor
    mismatch: Tensor


def views_of(model: Model, unknowns: Tree, facts: Facts, iteration: Tensor) -> Iterator[View]:
    """Yield the View of ONE trial in each round, simulated on demand."""
    clock = Clock(iteration, facts.key)
    for seen in facts.observation.rounds:
        simulated = facts.components.simulate(model, unknowns, seen, facts.knowledge, clock)
        observed = direction(seen, facts.observation.shares)
        yield View(unknowns, simulated, observed, seen, facts.knowledge, clock, facts.observation.shares)


def value_at(model: Model, unknowns: Tree, facts: Facts, iteration: Tensor) -> Tensor:
    """Return the objective of ONE trial at its unknowns, averaged over rounds; no gradient."""
    return torch.stack(
        [facts.components.objective(view) for view in views_of(model, unknowns, facts, iteration)]
    ).mean()


def evaluate_one(
    model: Model, unknowns: Tree, facts: Facts, iteration: Tensor, wanted: Sequence[str] | None = None
) -> tuple[Tree, Tensor, Tensor]:
    """Return (gradient in the `wanted` unknowns, total, mismatch in its reported unit) of ONE trial, averaged over rounds."""
    objective = facts.components.objective

    def total(varied: Tree) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        point = {**unknowns, **varied}
        values: list[Tensor] = []
        mismatches: list[Tensor] = []
        penalties: list[Tensor] = []
        for view in views_of(model, point, facts, iteration):
            values.append(objective(view))
            mismatches.append(reported(objective, view, values[-1]))
            penalties.extend(prior(view) for prior in facts.components.priors)
        value = torch.stack(values).mean()
        for penalty in penalties:
            value = value + penalty / len(values)
        return value, (value, torch.stack(mismatches).mean())

    varied = {name: unknowns[name] for name in (unknowns if wanted is None else wanted)}
    gradient, (value, mismatch) = gradient_and_aux(total, varied)
    return gradient, value, mismatch


def evaluate_alone(
    model: Model, unknowns: Tree, facts: Facts, iteration: Tensor, wanted: Sequence[str] | None = None
) -> tuple[Tree, Tensor, Tensor]:
    """Return what `evaluate_one` returns, outside vmap: by plain autograd if no training is simulated."""
    if LocalSteps in simulator_kinds(facts.components.simulate):
        return evaluate_one(model, unknowns, facts, iteration, wanted)
    with plain_autograd():
        gradient, total, mismatch = evaluate_one(model, unknowns, facts, iteration, wanted)
    return {name: value.detach() for name, value in gradient.items()}, total.detach(), mismatch.detach()


def value_alone(model: Model, unknowns: Tree, facts: Facts, iteration: Tensor) -> Tensor:
    """Return what `value_at` returns, outside vmap, as `evaluate_alone`."""
    if LocalSteps in simulator_kinds(facts.components.simulate):
        return value_at(model, unknowns, facts, iteration)
    with plain_autograd():
        return value_at(model, unknowns, facts, iteration).detach()


def trace_after(most: int) -> int:
    """Return after how many calls a run of at most `most` evaluations is traced: tracing must not take longer than the run."""
    return TRACE_AFTER if most >= LONG_RUN else 3 * TRACE_AFTER


class Evaluator:
    """Evaluates all trials of a chunk in one form; flattens the chunk's facts once."""

    def __init__(
        self,
        model: Model,
        unknowns: Tree,
        facts: Facts,
        form: str,
        *,
        wanted: Sequence[str] | None = None,
        trace_after: int | None = None,
        real: int | None = None,
    ) -> None:
        """Prepare; `unknowns` give names and shapes, `wanted` are differentiated (None: all), lanes from `real` on are padding."""
        if form not in FORMS:
            raise InputError(f"unknown form {form!r}; known: {', '.join(FORMS)}")
        strange = sorted(set(wanted or ()) - set(unknowns))
        if strange:
            raise InputError(f"no unknown is called {strange[0]!r}; there are {', '.join(unknowns)}")
        self.model, self.facts, self.form = model, facts, form
        self.names = list(unknowns)
        self.wanted = tuple(name for name in self.names if wanted is None or name in wanted)
        self.fixed = tuple(tensors(facts))
        if self.fixed[0].device.type == "cpu":
            keep_freed()
        self._call: Callable[..., Flat] | None = None
        self._staged: Staged[Callable[..., Flat]] | None = None
        self._trace_after = 0 if form == "compiled" else trace_after or TRACE_AFTER
        self.real = trials(unknowns) if real is None else real
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[tuple[Tensor, Flat]] = []
        self._bound: list[Callable[..., Flat]] = []
        self._each: list[Facts] = []  # of single trials

    def __call__(self, unknowns: Tree, iteration: Tensor) -> Evaluation:
        """Return the evaluation of every trial."""
        moving = (*unknowns.values(), iteration)
        if self.form == "loop":
            return self._loop(unknowns, iteration)
        if self.form in THREADED:
            return self._parallel(moving)
        if self.form == "split":
            return self._split(moving)
        [call] = self._ready(moving, [self.fixed])
        # a compiled graph fetches nothing from the host, so it runs outside the function mode of a recording
        mode = torch._C.DisableTorchFunction if self.form == "compiled" else nullcontext
        with mode(), torch.no_grad():
            return self._packed(call(*moving))

    def _ready(self, moving: Flat, parts: Sequence[Flat]) -> list[Callable[..., Flat]]:
        """Return the evaluation of each part of a batch: vmapped at first, traced after a few calls."""
        flat = (*moving, *parts[0])
        if self._staged is None:
            self._staged = Staged(None, self._trace_after, find_graph(self._key(flat)))
        graph = self._staged.at_call(lambda: None, partial(self._kept, flat))
        if self._call is None or (graph is not None and graph is not self._call):
            self._call = self._lifted() if graph is None else graph
            self._bound = [bind(self._call, fixed) for fixed in parts]
        return self._bound

    def _key(self, flat: Flat) -> Key:
        form = "native" if self.form == "split" else self.form  # a part runs the graph of a whole batch of its width
        return graph_key(f"evaluation, {form}", same=(self.model,), constants=self.wanted, inputs=self.facts, flat=flat)

    def _kept(self, flat: Flat) -> Callable[..., Flat] | None:
        """Return the traced (or compiled) evaluation, cached for chunks of this shape; None if it cannot be traced."""
        traced = self._traced(flat)
        if traced is None:
            return None
        compiled = self.form == "compiled"
        graph: Callable[..., Flat] = self._compiled(traced) if compiled else hoist(traced, len(self.names) + 1)
        keep_graph(self._key(flat), graph)
        return graph

    def _packed(self, flat: Flat) -> Evaluation:
        *gradient, total, mismatch = flat
        return Evaluation(dict(zip(self.wanted, gradient, strict=True)), total, mismatch)

    def _one(self, *flat: Tensor) -> Flat:
        if self.form == "channels_last":  # pooling over neighbours in memory; convolutions need no reordering
            flat = tuple(t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in flat)
        n = len(self.names)
        unknowns = dict(zip(self.names, flat[:n], strict=True))
        facts = fill(self.facts, list(flat[n + 1 :]))
        evaluate = evaluate_alone if self.form in ALONE else evaluate_one
        gradient, total, mismatch = evaluate(self.model, unknowns, facts, flat[n], self.wanted)
        return (*(gradient[name] for name in self.wanted), total, mismatch)

    def _lifted(self) -> Callable[..., Flat]:
        lifted: Callable[..., Flat] = torch.func.vmap(self._one, randomness="error")
        compiled = self.form == "compiled"
        mode: Callable[[], AbstractContextManager[object]] = (
            partial(Im2col, compiled=compiled) if compiled or self.form == "im2col" else nullcontext
        )

        def call(*flat: Tensor) -> Flat:
            with mode():
                return lifted(*flat)

        return call

    def _traced(self, flat: Flat) -> torch.fx.GraphModule | None:
        """Return the flat graph of the vmapped evaluation; None if it cannot be traced."""
        try:
            graph = flat_graph(self._lifted(), flat, by_run=self.form != "compiled")
        except (RuntimeError, TypeError, ValueError) as error:
            if self.form == "compiled" or is_out_of_memory(error):
                raise
            return None
        return graph

    def _compiled(self, graph: torch.fx.GraphModule) -> Callable[..., Flat]:
        """Return the traced graph of vmap(grad(f)) with im2col, compiled: much faster than compiling it untraced."""
        copy_before_writing(graph)
        cut_long_sums(graph)
        graph.recompile()
        compiled: Callable[..., Flat] = torch.compile(graph, dynamic=False)
        return compiled

    def _on_cores(self, f: Callable[[V], Flat], parts: Iterable[V]) -> list[Flat]:
        """Return `f` of every part, each computed on one thread, as many at once as there are threads."""
        threads = torch.get_num_threads()

        def quietly(part: V) -> Flat:
            with torch.no_grad():
                return f(part)

        if threads == 1:
            return [quietly(part) for part in parts]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads, "leakscope", initializer=torch.set_num_threads, initargs=(1,))
        torch.set_num_threads(1)
        try:
            return list(self._pool.map(quietly, parts))
        finally:
            torch.set_num_threads(threads)

    def _parallel(self, moving: Flat) -> Evaluation:
        """Run the traced graph of a single trial on every trial, one core each, so its bits cannot depend on its neighbours."""
        if not self._bound:
            single = self._single(tuple(t[0] for t in (*moving, *self.fixed)))
            self._bound = [bind(single, tuple(t[i] for t in self.fixed)) for i in range(self.real)]
        rows = self._on_cores(lambda i: self._bound[i](*[t[i] for t in moving]), range(self.real))
        rows += rows[:1] * (moving[0].shape[0] - self.real)
        return self._packed(tuple(torch.stack(column) for column in zip(*rows, strict=True)))

    def first_untraced(self, unknowns: Tree, iteration: Tensor) -> Flat:
        """Return what a form of single trials computes for the first trial, operation by operation."""
        return self._one(*(t[0] for t in (*unknowns.values(), iteration, *self.fixed)))

    def _split(self, moving: Flat) -> Evaluation:
        """Run the vmapped evaluation on equal parts of the batch, one core each: small kernels gain little from two threads.

        Every part ends in spare lanes of its own, so the bits do not depend on the split.
        """
        if not self._parts:
            self._parts = self._cut()
        parts = [tuple(t[index] for t in moving) for index, _ in self._parts]
        calls = self._ready(parts[0], [fixed for _, fixed in self._parts])
        flat = self._on_cores(lambda i: calls[i](*parts[i]), range(len(parts)))
        each = -(-self.real // len(flat))
        whole = [torch.cat([t[:each] for t in column])[: self.real] for column in zip(*flat, strict=True)]
        more = moving[0].shape[0] - self.real
        return self._packed(tuple(torch.cat([t, t[:1].expand(more, *t.shape[1:])]) for t in whole))

    def _cut(self) -> list[tuple[Tensor, Flat]]:
        """Return the lanes and the fixed inputs of each part; all parts have one shape and share one graph."""
        device = self.fixed[0].device
        each = -(-self.real // torch.get_num_threads())
        width = lanes(each, spare_lanes(self.model, self.facts.knowledge, device))
        lane = torch.arange(self.real, device=device)
        cut = [padded(part, width) for part in lane.split(each)]
        return [(index, tuple(t[index] for t in self.fixed)) for index in cut]

    def _single(self, flat: Flat) -> Callable[..., Flat]:
        """Return the traced graph of one trial, from the cache."""
        key = self._key(flat)
        known = find_graph(key)
        if known is not None:
            return known
        try:
            graph = flat_graph(self._one, flat)
        except RuntimeError as error:
            if self.form != "channels_last" or "view size is not compatible" not in str(error):
                raise
            raise InputError(
                f"model {self.model.name!r} calls view() on pictures, which fails with channels last in memory: use the form "
                "'parallel', or reshape() in the model"
            ) from None
        fast = for_cpu(graph, channels_last=self.form == "channels_last")
        single: Callable[..., Flat] = hoist(fast, len(self.names) + 1)
        keep_graph(key, single)
        return single

    def _loop(self, unknowns: Tree, iteration: Tensor) -> Evaluation:
        self._each = self._each or [take(self.facts, i) for i in range(self.real)]

        def one(i: int) -> tuple[Tree, Tensor, Tensor]:
            return evaluate_alone(self.model, take(unknowns, i), self._each[i], iteration[i], self.wanted)

        beside = iteration.is_cuda and self.real > 1 and torch.cuda.is_current_stream_capturing()
        rows = side_by_side(one, range(self.real), STREAMS) if beside else [one(i) for i in range(self.real)]
        rows += rows[:1] * (trials(unknowns) - self.real)
        gradient = {name: torch.stack([row[0][name] for row in rows]) for name in self.wanted}
        return Evaluation(gradient, torch.stack([r[1] for r in rows]), torch.stack([r[2] for r in rows]))
