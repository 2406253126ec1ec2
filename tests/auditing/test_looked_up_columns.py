"""Columns that an embedding looks up are read by nobody: the audit says so and gives no good grade."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.auditing import Target, audit_target, suite, target_audit
from leakscope.auditing.attack_runs import expose_clients
from leakscope.auditing.static.facts import Severity, Topic
from leakscope.auditing.static.inspection import inspect
from leakscope.auditing.target import make_subject
from leakscope.auditing.tokens.columns import unread_columns
from leakscope.auditing.verdict import Grade
from leakscope.core.types import LocalTraining
from leakscope.defences import GaussianNoise

ROWS = 24


class Columns(nn.Module):
    """The first column is a category."""

    def __init__(self, *, positions: bool = False) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(10, 4), nn.Linear(9, 3, bias=False), nn.Linear(3, 2)
        self.positions = positions

    def forward(self, x: Tensor) -> Tensor:
        first = torch.arange(2, device=x.device).expand(len(x), 2)[:, 0] if self.positions else x[:, 0].long()
        return self.head(torch.relu(self.inner(torch.cat([self.table(first), x[:, 1:]], 1))))


def target(**given: Any) -> Target:
    torch.manual_seed(0)
    inputs = torch.rand(ROWS, 6)
    inputs[:, 0] = torch.arange(ROWS) % 10
    model = Columns(positions=given.pop("positions", False))
    return Target(**({"model": model, "inputs": inputs, "labels": torch.arange(ROWS) % 2} | given))


def looked_up(exposure: Any) -> list[set[int]]:
    """Return the categories of every client, from the private data."""
    x = exposure.client.scaling.scale(exposure.batch.inputs, 1)
    return [set(rows[:, 0].long().tolist()) for rows in x]


@pytest.mark.parametrize("local", [None, LocalTraining(epochs=2, batch_size=2, rate=0.1, weight_decay=0.01)])
@pytest.mark.parametrize("examples", [1, 4])
def test_the_number_of_categories_that_rows_show_is_that_of_the_clients(
    examples: int, local: LocalTraining | None
) -> None:
    exposure = expose_clients(make_subject(target(examples=examples, client=local)), 4, 0)
    (item,) = unread_columns(Columns(), exposure)
    sizes = [len(each) for each in looked_up(exposure)]
    few, many = min(sizes), max(sizes)
    assert f"shows {few if few == many else f'{few} to {many}'} of the 10 rows of layer table" in item.why
    assert item.failed


@pytest.mark.parametrize("given", [{"positions": True}, {"defences": (GaussianNoise(0.1),)}])
def test_rows_that_show_nothing_of_the_client_are_not_named(given: dict[str, Any]) -> None:
    assert unread_columns(Columns(), expose_clients(make_subject(target(**given)), 4, 0)) == []


def test_no_good_grade_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1))
    made = audit_target(target(examples=4), minutes=0.3, clients=4, remedies=False)
    assert made.grade is Grade.INCONCLUSIVE
    assert made.failures({"asr": 1.0})
    assert any("layer table" in item.what for item in made.untested)

    monkeypatch.setattr(target_audit, "unread_columns", lambda *_: [])
    assert audit_target(target(examples=4), minutes=0.3, clients=4, remedies=False).grade in (Grade.A, Grade.B)


def test_the_static_line_of_a_table_claims_no_attack() -> None:
    line = inspect(Columns(), inputs=torch.rand(4, 6))[Topic.EMBEDDINGS]
    assert line.severity is Severity.PARTIAL
    assert not line.decided_by
