"""`leakscope.inspect(model, batch=...)`: what a model's updates show before any attack, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from leakscope.analysis.ranks import LayerRank
from leakscope.auditing.limits import whole_number
from leakscope.auditing.static import lines as static_lines
from leakscope.auditing.static.adapters import adapters_line
from leakscope.auditing.static.dense_lines import dense_lines
from leakscope.auditing.static.facts import Facts, Line, Severity, Topic, deciders, unknown
from leakscope.auditing.tokens.lines import tokens_line
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError, first_line
from leakscope.core.pages import notebook_table
from leakscope.core.token_layers import EMBEDDINGS
from leakscope.core.types import LocalTraining
from leakscope.learning.losses import LOSSES
from leakscope.models import Structure, find_structure
from leakscope.models.dropout import drawing_from
from leakscope.models.settings import shape_of

if TYPE_CHECKING:
    from leakscope.auditing.target import Target
    from leakscope.play import Exposure

MOST_BATCH = 10**9
EXAMPLES = 2  # of the one forward pass: batch norm in train mode needs two


@dataclass(frozen=True, slots=True, eq=False)
class Inspection:
    """What a model's updates reveal without an attack: one line per topic, and the rank analysis of each layer."""

    name: str
    batch: int
    lines: tuple[Line, ...]
    ranks: tuple[LayerRank, ...] = ()

    def __getitem__(self, topic: Topic) -> Line:
        """Return the line of a topic."""
        return next(line for line in self.lines if line.topic is topic)

    def shown(self) -> list[str]:
        """Return the lines in words; topics of which nothing was found share the last."""
        absent = ", ".join(line.topic for line in self.lines if line.severity is Severity.NONE)
        words = [f"{line.severity}: {line}" for line in self.lines if line.severity is not Severity.NONE]
        return [*words, *([f"{Severity.NONE}: {absent}"] if absent else [])]

    def __repr__(self) -> str:
        head = f"Inspection of {self.name}, batch of {self.batch}: no attack was run"
        return "\n  ".join([head, *self.shown()])

    def __str__(self) -> str:
        head = f"{self.name}, batch of {self.batch}, before any attack:"
        return "\n".join([head, *(f"  {line.severity:<9}  {line}" for line in self.lines)])

    def _repr_html_(self) -> str:
        rows = [
            [line.topic, line.severity, line.finding, ", ".join(line.decided_by) or "no attack", line.page]
            for line in self.lines
        ]
        caption = f"{self.name}, batch of {self.batch}, before any attack"
        return notebook_table(caption, ("", "", "finding", "decided by", "docs"), rows)

    def to_dict(self) -> dict[str, object]:
        """Return plain data, for JSON."""
        ranks = [{**asdict(rank), "left": rank.left} for rank in self.ranks]
        plain = [{**asdict(line), "decided_by": list(line.decided_by)} for line in self.lines]
        return {"model": self.name, "batch": self.batch, "lines": plain, "ranks": ranks}


def inspect(
    model: nn.Module,
    *,
    batch: int = 1,
    client: LocalTraining | Client | None = None,
    input_shape: Sequence[int] | None = None,
    inputs: Tensor | None = None,
    sends_buffers: bool | None = None,
) -> Inspection:
    """Return what updates of a model reveal without an attack, from one forward pass without gradients.

    `batch` is the number of examples behind one update. `input_shape` is the shape of ONE input; `inputs`, a sample as the model takes it,
    replaces it and lets the line on units count. `sends_buffers` says whether clients send batch-norm buffers with their update (None:
    as the client says, else not known). The model is not changed. What its run does not show is a line "not known".
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"inspect needs an nn.Module, got {type(model).__name__}")
    if any(nn.parameter.is_lazy(value) for value in model.parameters()):
        raise InputError(f"{type(model).__name__} has lazy layers without weights yet; run it once on an input first")
    batch = whole_number(batch, "batch", 1, MOST_BATCH)
    if client is not None and not isinstance(client, LocalTraining | Client):
        raise InputError(f"inspect(client=...) takes a LocalTraining or a Client, got {type(client).__name__}")
    if inputs is not None and (not isinstance(inputs, Tensor) or inputs.ndim < 1 or not len(inputs)):
        raise InputError("inspect(inputs=...) takes a tensor of M examples, M x ...")
    played = client if isinstance(client, Client) else Client(local=client)
    if sends_buffers is None and isinstance(client, Client):
        sends_buffers = client.sends_buffers
    shape = None if input_shape is None else shape_of("input_shape", input_shape)
    shape = shape if inputs is None else tuple(inputs.shape[1:])
    structure, why = run_once(model, shape, inputs)
    facts = Facts(model, structure, why, batch, played, shape, inputs, sends_buffers)
    ranks = static_lines.layer_ranks(facts)
    return Inspection(type(model).__name__, batch, _lines(facts, ranks), ranks)


def inspect_target(target: Target, batch: int | None = None, exposure: Exposure | None = None) -> Inspection:
    """Return the static lines of an audit's target; `batch` replaces its number of examples, `exposure` gives the loss."""
    inspection = inspect(
        target.model,
        batch=target.examples if batch is None else batch,
        client=target.client,
        input_shape=target.input_shape,
        inputs=target.inputs,
    )
    loss = "cross_entropy" if exposure is None else exposure.knowledge.loss
    if loss == "cross_entropy":
        return inspection
    return replace(
        inspection, lines=tuple(_under_another_loss(line, peels=loss in LOSSES) for line in inspection.lines)
    )


def _under_another_loss(line: Line, *, peels: bool) -> Line:
    """Return a line without what holds under cross entropy only; `peels`: peeling can simulate the loss."""
    if line.topic is Topic.LABELS and line.severity is not Severity.NONE:
        return unknown(line.topic, "the rules read cross entropy of one class an example, and the loss is another")
    if not peels and set(line.decided_by) & {"peeling", "spear"}:
        return replace(line, decided_by=deciders("analytic"))
    return line


def _lines(facts: Facts, ranks: tuple[LayerRank, ...]) -> tuple[Line, ...]:
    return (
        static_lines.sent_line(facts),
        *dense_lines(facts),
        static_lines.embeddings_line(facts),
        tokens_line(facts),
        adapters_line(facts),
        static_lines.buffers_line(facts),
        static_lines.labels_line(facts),
        static_lines.collisions_line(facts),
        static_lines.ranks_line(facts, ranks),
    )


def run_once(module: nn.Module, shape: tuple[int, ...] | None, inputs: Tensor | None) -> tuple[Structure | None, str]:
    """Return what one forward pass shows, or None and why there was none; nothing of the model is written to."""
    if shape is None:
        return None, "the shape of an input is not given"
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    like = next(
        (value for value in (*weights.values(), *buffers.values()) if value.is_floating_point()), torch.zeros(())
    )
    trained = {name: value for name, value in weights.items() if value.requires_grad}

    def run(x: Tensor) -> object:
        values = weights | {name: value.clone() for name, value in buffers.items()}
        with drawing_from(random.key(0, device=x.device)):
            output = torch.func.functional_call(module, values, (x,))
            return getattr(output, "logits", output)  # of a model of transformers

    problem = ""
    for example in _examples(module, shape, inputs, like):
        try:
            with torch.random.fork_rng(devices=[example.device] if example.is_cuda else []):
                return find_structure(run, module, trained, example, shapes_only=True), ""
        except Exception as error:  # a user's network may raise anything
            words = f"the model cannot run on {example.dtype} of shape {tuple(example.shape)}: {first_line(error)}"
            problem = problem or words  # of the type that the first layer takes
    return None, problem


def _examples(module: nn.Module, shape: tuple[int, ...], inputs: Tensor | None, like: Tensor) -> list[Tensor]:
    """Return the inputs to try: those of the sample, else numbers in [0, 1) and token numbers, first what the first layer takes."""
    if inputs is not None:
        example = inputs[torch.arange(EXAMPLES) % len(inputs)].detach().to(like.device)
        return [example.to(like.dtype) if example.is_floating_point() else example]
    line = torch.linspace(0, 1, EXAMPLES * math.prod(shape) + 1, device=like.device)[:-1]
    drawn = line.reshape(EXAMPLES, *shape).to(like.dtype)
    first = next((each for each in module.modules() if next(each.parameters(recurse=False), None) is not None), None)
    tokens = torch.zeros_like(drawn, dtype=torch.int64)
    return [tokens, drawn] if isinstance(first, EMBEDDINGS) else [drawn, tokens]
