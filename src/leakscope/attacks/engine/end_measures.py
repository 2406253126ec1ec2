"""Values measured once, at the end of each trial; nothing is optimised or selected by them.

An example is the similarity loss `1 - cos` of DLFA, which SME's paper prints (tables 2, 6 and 7) but DLFA does not minimise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from leakscope.attacks.engine.forms import ALONE, value_at
from leakscope.attacks.engine.plan import DEFAULT, DTYPES, SHARE_OF_FREE, WIDEST, Execution
from leakscope.attacks.engine.runner import precision
from leakscope.attacks.engine.state import Finished
from leakscope.attacks.view import Facts, Objective
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, take, tensors, to
from leakscope.kernels.im2col import Im2col
from leakscope.kernels.lanes import lanes, padded, spare_lanes
from leakscope.kernels.memory import available, is_out_of_memory, peak_bytes


def measure_ends(
    model: Model,
    facts: Facts,
    ended: Finished,
    lane: Tensor,
    measures: Mapping[str, Objective],
    execution: Execution = DEFAULT,
) -> Tree:
    """Return each measure at the last guess of every trial, on the CPU, averaged over rounds; `lane` maps trials to lanes of `facts`."""
    on_device = to(dict(measures), device=torch.device(execution.device), dtype=DTYPES[execution.dtype])
    with precision(execution.tf32):
        return {name: _Ends(model, facts, ended, lane, each, execution).values() for name, each in on_device.items()}


class _Ends:
    """One measure at the ends of all trials, in batches that fit into memory."""

    def __init__(
        self, model: Model, facts: Facts, ended: Finished, lane: Tensor, measure: Objective, execution: Execution
    ) -> None:
        self.model, self.facts, self.ended, self.lane = model, facts, ended, lane
        self.measure, self.execution = measure, execution
        self.device = torch.device(execution.device)
        self.spare = spare_lanes(model, facts.knowledge, self.device)

    def values(self) -> Tensor:
        """Return the measure of every trial."""
        every = torch.arange(len(self.lane))
        if self.execution.form in ALONE:
            return self._one_by_one(every)
        return torch.cat([self._together(part) for part in every.split(self._width())])

    def _width(self) -> int:
        """Return how many trials are measured at once."""
        width = self.execution.chunk or WIDEST[self.device.type]
        if self.execution.chunk and not self.execution.memory:
            return width
        first = torch.zeros(1, dtype=torch.int64)
        stored = sum(t.numel() * t.element_size() for t in tensors(self._problem(first)))
        each = peak_bytes(lambda: self._one_by_one(first)) + 2 * stored
        limit = self.execution.memory or int(available(self.device) * SHARE_OF_FREE)
        return max(min(width, limit // each - self.spare), 1)

    def _together(self, part: Tensor) -> Tensor:
        """Return the measure of some trials as one padded batch; one by one if memory runs out."""
        mode = Im2col if self.execution.form in ("im2col", "compiled") else contextlib.nullcontext
        try:
            with torch.no_grad(), mode():
                problem = self._problem(padded(part, lanes(len(part), self.spare)))
                values: Tensor = lift(partial(value_at, self.model))(*problem)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return self._one_by_one(part)
        return values[: len(part)].cpu()

    def _one_by_one(self, part: Tensor) -> Tensor:
        with torch.no_grad():
            rows = [value_at(self.model, *take(self._problem(one), 0)) for one in part.split(1)]
        return torch.stack(rows).cpu()

    def _problem(self, part: Tensor) -> tuple[Tree, Facts, Tensor]:
        """Return unknowns, facts and iterations of some trials; the measure is their objective."""
        ended = take((self.ended.unknowns, self.ended.iteration), part)
        unknowns, iteration = to(ended, device=self.device)
        facts = take(self.facts, self.lane[part].to(self.device))
        components = replace(facts.components, objective=take(self.measure, part.to(self.device)))
        return unknowns, replace(facts, components=components), iteration
