"""A chunk lands whole or not at all, and never twice."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.core.record import Record
from leakscope.store import Landing, Run, Writer


def test_the_same_landing_again_changes_nothing(run: Run, sweep: SimpleNamespace) -> None:
    before = sweep.content(run)
    with run.writing() as writer:
        writer.land(sweep.make_landing(1))
        writer.land(replace(sweep.make_landing(1), seconds=99.0, tensors={}))
    assert sweep.content(run) == before


def test_a_stored_trial_in_another_chunk_is_refused_and_its_neighbours_with_it(
    run: Run, sweep: SimpleNamespace
) -> None:
    before = sweep.content(run)
    fresh, old = sweep.make_landing(2), sweep.make_landing(1)
    mixed = (*fresh.records[:2], old.records[0])
    with run.writing() as writer:
        with pytest.raises(InputError, match=f"trial {old.records[0].trial} .*c2 .*in another"):
            writer.land(replace(fresh, records=mixed))
        with pytest.raises(InputError, match=r"plan 1 .*other trials"):
            writer.land(replace(fresh, chunk="c1"))
        assert sweep.content(run) == before
        writer.land(fresh)
    assert len(run.done()) == 9


def test_another_plan_may_use_the_same_chunk_names(run: Run, sweep: SimpleNamespace) -> None:
    with run.writing() as writer:
        plan = writer.add_plan({"another": True})
        writer.land(replace(sweep.make_landing(2), chunk="c0", plan=plan))
    for k in (0, 2):
        landing = sweep.make_landing(k)
        for row, record in enumerate(landing.records):
            assert torch.equal(run.tensors(record.trial)["guess"], landing.tensors["guess"][row])


class Broken(BaseException):
    """Not an Exception, as KeyboardInterrupt is not."""


@pytest.mark.parametrize("where", ["os.fsync", "os.replace", "insert", "after the commit"])
def test_a_landing_that_breaks_leaves_nothing_and_can_be_repeated(
    run: Run, sweep: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    before = sweep.content(run)
    with run.writing() as writer:
        with monkeypatch.context() as patch:
            break_at(where, patch, writer)
            with pytest.raises(Broken):
                writer.land(sweep.make_landing(2))
        if where != "after the commit":
            assert sweep.content(run) == before
        writer.land(sweep.make_landing(2))
        assert writer.verify() == []
    assert len(run.done()) == 9
    with run.writing() as writer:
        assert writer.verify() == []


def break_at(where: str, patch: pytest.MonkeyPatch, writer: Writer) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Broken

    if where.startswith("os."):
        patch.setattr(os, where.removeprefix("os."), fail)
    elif where == "insert":
        patch.setattr("leakscope.store.columns.sample_rows", fail)
    else:
        patch.setattr(writer, "_connection", BreaksAfterCommit(writer._connection))


class BreaksAfterCommit:
    """A connection on which an interrupt arrives right after the commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def execute(self, sql: str, *rest: object) -> sqlite3.Cursor:
        done = self.connection.execute(sql, *rest)
        if sql == "COMMIT":
            raise Broken
        return done

    def __getattr__(self, name: str) -> object:
        return getattr(self.connection, name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "a\nb", "a\0", "ü", "x" * 101, "c:\\x", "-a"]
)
def test_a_chunk_name_that_is_no_plain_name_is_refused(sweep: SimpleNamespace, name: str) -> None:
    with pytest.raises(InputError, match="name of a chunk"):
        replace(sweep.make_landing(0), chunk=name)


def test_what_does_not_fit_together_is_refused(run: Run, sweep: SimpleNamespace) -> None:
    good: Landing = sweep.make_landing(2)
    with pytest.raises(InputError, match=r"Landing.records .*empty"):
        replace(good, records=())
    with pytest.raises(InputError, match=r"3 records, .*\(2, 5\)"):
        replace(good, tensors={"guess": torch.zeros(2, 5)})
    with pytest.raises(InputError, match=r"3 records, .*\(\)"):
        replace(good, tensors={"guess": torch.tensor(1.0)})
    with pytest.raises(InputError, match="different trials"):
        replace(good, records=good.records[:1] * 3)
    with pytest.raises(InputError, match="__metadata__"):
        replace(good, tensors={"__metadata__": torch.zeros(3)})
    with run.writing() as writer:
        with pytest.raises(InputError, match="plan 7"):
            writer.land(replace(good, plan=7))
        lost = tuple(of_cell(record, "nowhere") for record in good.records)
        with pytest.raises(InputError, match="cell 'nowhere'"):
            writer.land(replace(good, records=lost))
    assert len(run.done()) == 6
    assert len(list((run.directory / "tensors").iterdir())) == 2


def of_cell(record: Record, cell: str) -> Record:
    return replace(record, cell=cell)


@pytest.mark.parametrize("field", ["number", "iterations", "evaluations"])
def test_a_count_that_readers_take_for_damage_is_refused(run: Run, sweep: SimpleNamespace, field: str) -> None:
    before, fresh = sweep.content(run), sweep.make_landing(2)
    with run.writing() as writer, pytest.raises(InputError, match="counts"):
        writer.land(replace(fresh, records=(replace(fresh.records[0], **{field: 2**48 + 1}), *fresh.records[1:])))
    assert sweep.content(run) == before


def test_a_tensor_that_shares_memory_or_needs_a_gradient_is_stored_by_value(run: Run, sweep: SimpleNamespace) -> None:
    shared = torch.arange(12.0, requires_grad=True)
    views = {"a": shared.reshape(3, 4), "b": shared.reshape(3, 4), "c": shared.reshape(4, 3).T}
    landing = replace(sweep.make_landing(2), tensors=views)
    with run.writing() as writer:
        writer.land(landing)
    found = run.tensors(landing.records[1].trial)
    assert {name: t.tolist() for name, t in found.items()} == {name: t[1].tolist() for name, t in views.items()}


def test_renewing_keeps_what_is_stored_and_says_what_is_current(run: Run, sweep: SimpleNamespace) -> None:
    old = [sweep.make_cell(i) for i in range(4)]
    changed = replace(old[2], axes={"noise": 0.2, "new axis": True})
    now = [sweep.make_cell(9), changed]
    everything = [repr(record) for record in run.records()]
    with run.writing() as writer:
        writer.renew("name: another", now, {"host": "b"})
    assert run.cells() == now
    assert run.cells(current=False) == [old[0], old[1], changed, old[3], now[0]]
    assert {record.cell for record in run.records()} == {changed.id}
    assert {run.cells(current=False)[code].id for code in run.columns()["cell"]} == {changed.id}
    assert [repr(record) for record in run.records(current=False)] == everything
    assert len(list(run.records(cell=old[0].id))) == 2
    assert len(run.done()) == 6
    assert (run.scenario(), run.facts()) == ("name: another", {"host": "b"})
    assert (run.directory / "scenario.yaml").read_text() == "name: another"
    with run.writing() as writer:
        writer.renew(sweep.SCENARIO, old, sweep.FACTS)
        writer.renew(sweep.SCENARIO, old, dict(reversed(sweep.FACTS.items())))
    assert [repr(record) for record in run.records()] == everything
    assert [session["scenario"] for session in run.history()] == [sweep.SCENARIO, "name: another", sweep.SCENARIO]


def test_a_changed_plan_is_new_and_the_same_plan_is_not(run: Run) -> None:
    with run.writing() as writer:
        first = writer.add_plan({"a": 1, "b": [1, 2]})
        assert writer.add_plan({"b": [1, 2], "a": 1}) == first
        second = writer.add_plan({"a": 1, "b": [2, 1]})
    stored = {plan["id"]: plan["plan"] for plan in run.plans()}
    assert stored[first] == {"a": 1, "b": [1, 2]}
    assert stored[second] == {"a": 1, "b": [2, 1]}
    assert len(stored) == 3


def test_a_chunk_remembers_its_plan_session_and_cost(run: Run, sweep: SimpleNamespace) -> None:
    with run.writing() as writer:
        writer.renew(sweep.SCENARIO, [sweep.make_cell(i) for i in range(4)], {"host": "other"})
        writer.land(sweep.make_landing(2))
    told = [
        (chunk["chunk"], chunk["plan"], chunk["session"], chunk["seconds"], chunk["trials"]) for chunk in run.chunks()
    ]
    assert told == [("c0", 1, 1, 0.0, 3), ("c1", 1, 1, 0.125, 3), ("c2", 1, 2, 0.25, 3)]


def test_the_file_of_a_chunk_tells_what_it_is(run: Run, sweep: SimpleNamespace) -> None:
    import json

    from safetensors import safe_open

    (path,) = (run.directory / "tensors").glob("*c1.safetensors")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["leakscope"])
    assert about == {"chunk": "c1", "plan": 1, "trials": [record.trial for record in sweep.make_landing(1).records]}
    assert path == Path(run.directory, "tensors", "1-c1.safetensors")
