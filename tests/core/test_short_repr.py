"""Values that hold tensors print their shapes: no private number, no weight, and never more than a few lines."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import leakscope
from leakscope.core.short_repr import MOST, describe_value, short_repr
from leakscope.core.types import Batch, Knowledge, Observation, Round, Shares
from leakscope.store import Capture

LIMIT = 1500
ROOT = Path(leakscope.__file__).parent
# not shown to users, or pieces of attacks, whose text is part of the name of a run
INSIDE = {"engine", "kernels", "learning", "cli", "sweep", "training", "models", "view", "bench_cases", "optimisers"}
INSIDE |= {"aware", "known_policy"}
HELD = re.compile(r"\b(Tensor|Tree)\b")
SETTING = re.compile(r"float \| Tensor|Callable")  # a strength for each trial, a function
SECRET = 0.123456789


def public_values() -> Iterator[type]:
    """Yield the dataclasses of the package that hold tensors other than settings."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if INSIDE.isdisjoint(parts) and parts[-1] not in ("__init__", "__main__"):
            module = importlib.import_module(".".join(("leakscope", *parts)))
            for value in vars(module).values():
                if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
                    kinds = [str(field.type) for field in dataclasses.fields(value) if field.repr]
                    held = [kind for kind in kinds if HELD.search(kind) and not SETTING.search(kind)]
                    if held and not value.__name__.startswith("_"):
                        yield value


@pytest.mark.parametrize("kind", list(public_values()), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_value_with_tensors_prints_shapes(kind: type) -> None:
    assert kind.__repr__ is short_repr


def test_no_number_of_a_tensor_is_printed() -> None:
    tensor = torch.full((2, 1, 3), SECRET)
    labels = torch.full((2, 1), 7)
    batch = Batch(tensor, labels, labels > 0)
    seen = Observation((Round({"w": tensor}, {}, {"w": tensor}),) * 9, Shares.GRADIENT, labels[:, 0])
    known = Knowledge((3,), 10, 1, labels=labels, public=tensor, policies=((("rotate", 0.5),),) * 500)
    kept = Capture(round=1, client="a", before={"w": tensor}, sent={"w": tensor}, config={"rate": 0.1})
    model = leakscope.from_module(nn.Sequential(nn.Linear(3, 10)), input_shape=(3,))
    for value in (
        batch,
        seen,
        known,
        kept,
        model,
        leakscope.Target(model=nn.Linear(3, 10), inputs=tensor[0], labels=labels[0]),
    ):
        assert len(repr(value)) <= LIMIT
        assert str(SECRET)[:5] not in repr(value)
        assert "tensor(" not in repr(value)
    assert "2 x 1 x 3 float32" in repr(batch)
    assert "targets" not in repr(batch)


def test_long_values_are_cut() -> None:
    assert len(short_repr(Knowledge(tuple(range(9)), 10, 1, loss="l" * 5000))) <= MOST
    assert describe_value([torch.zeros(2)] * 9).count("2 float32") == 3
    assert describe_value({"a": torch.zeros(2), "b": torch.zeros(3)}) == "2 tensors of 5 numbers"
