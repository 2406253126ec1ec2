from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.attacks.engine.footprint import BASE
from leakscope.core.errors import InputError, TooLargeError
from leakscope.kernels.memory import available, peak_bytes
from leakscope.play import Exposure
from leakscope.scenario import scenario_of
from leakscope.store import Landing, Run
from leakscope.sweep import chunk as chunk_module
from leakscope.sweep import make_plan
from leakscope.sweep import plan as plan_module
from leakscope.sweep.chunk import Chunk, play_chunk
from leakscope.sweep.driver import ReportingWatcher, unfold
from leakscope.sweep.engines import processes
from leakscope.sweep.plan import group_trials, share_of_memory
from leakscope.sweep.stored_plan import chunks_of, read_plan
from sweeper import SMALL, content, small, sweep


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("runs") / "whole"
    done = sweep(directory)
    assert done.left == 0
    assert done.landed == done.wanted == 2 * 2 * 3 * 2 + 3
    return content(directory)


def test_every_trial_lands_once_with_its_scores_and_pictures(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    assert len(undisturbed) == 27
    sweep(tmp_path / "r")
    run = Run.open(tmp_path / "r")
    for cell in run.cells():
        for record in run.records(cell=cell.id):
            kept = run.tensors(record.trial)
            assert kept["truth"].shape == kept["inputs"].shape == (1, 1, 8, 8)
            assert record.samples[0].mse == pytest.approx(
                float((kept["truth"] - kept["inputs"].clamp(0, 1)).square().mean()), rel=1e-5
            )
            assert (record.iterations == 0) == cell.baseline


@pytest.mark.slow
def test_a_second_run_does_nothing_and_the_same_plan_gives_the_same_bits(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    assert sweep(tmp_path / "r").landed == 27
    again = sweep(tmp_path / "r")
    assert (again.before, again.landed) == (27, 0)
    assert content(tmp_path / "r") == undisturbed


@pytest.mark.slow
def test_processes_give_the_records_of_one_process(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    sweep(tmp_path / "r", engine=processes(2))
    assert content(tmp_path / "r") == undisturbed


@pytest.mark.slow
def test_workers_give_the_records_of_one_process(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    sweep(tmp_path / "r", engine=None, workers=2)
    assert content(tmp_path / "r") == undisturbed


def test_a_plan_for_another_device_is_not_followed(tmp_path: Path) -> None:
    sweep(tmp_path / "r", stop=lambda: True)
    run = Run.open(tmp_path / "r")
    (stored,) = run.plans()
    unfolded = unfold(small())
    ids = {trial.id for trial in unfolded.trials}
    plan = read_plan(stored["id"], stored["plan"])
    assert len(chunks_of(plan, unfolded, ids, "cpu")) == len(plan.chunks)
    assert not chunks_of(plan, unfolded, ids, "cuda")


def test_workers_share_the_memory() -> None:
    assert share_of_memory(900, 3, "cuda") == 300
    assert share_of_memory(None, 1, "cpu") is None
    assert 0 < (share_of_memory(None, 8, "cpu") or 0) < available(torch.device("cpu")) / 8


@pytest.mark.slow
def test_a_chunk_whose_clients_do_not_fit_is_played_in_halves_with_the_same_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = unfold(small(precision={"form": "native"}, baselines=[]))
    chunk = make_plan(whole, whole.trials, cores=1, measure=False).chunks[0]
    calm = play_chunk(chunk).landing
    genuine = chunk_module.expose_chunk

    def little_memory(asked: Chunk) -> Exposure:
        if len(asked.trials) > 5:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return genuine(asked)

    monkeypatch.setattr(chunk_module, "expose_chunk", little_memory)
    halved = play_chunk(chunk).landing
    assert [replace(record, seconds=0) for record in halved.records] == [replace(r, seconds=0) for r in calm.records]
    assert all(torch.equal(value, calm.tensors[name]) for name, value in halved.tensors.items())
    monkeypatch.setattr(chunk_module, "expose_chunk", raise_memory_error)
    with pytest.raises(InputError, match="one trial"):
        play_chunk(chunk)


def raise_memory_error(_: Chunk) -> Exposure:
    raise MemoryError


def test_a_scenario_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="memory limit"):
        sweep(tmp_path / "r", small(baselines=[]), memory=1000, measure=True)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("mib", "fits"), [(46, False), (150, True)])
def test_planning_keeps_to_the_limit_whether_or_not_a_trial_fits(mib: int, fits: bool) -> None:
    """Probes leave room for the clients, the problem and the network that are already in memory."""
    wide = {"name": "mlp", "hidden": [1024, 1024]}
    settings = {"data": {"name": "digits"}, "model": wide, "attack": {"name": "ig", "iterations": 20}, "trials": 8}
    whole = unfold(scenario_of({**settings, "baselines": []}))
    fitted: list[bool] = []

    def plan() -> None:
        with contextlib.suppress(TooLargeError):
            make_plan(whole, whole.trials, cores=1, memory=mib * 2**20)
            fitted.append(True)

    assert peak_bytes(plan) + BASE <= mib * 2**20
    assert bool(fitted) == fits


@pytest.mark.slow
def test_a_directory_of_other_files_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("a group was measured")

    monkeypatch.setattr("leakscope.sweep.driver.make_plan", measured)
    (tmp_path / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError):
        sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_strengths_seeds_and_images_share_a_batch(tmp_path: Path) -> None:
    scenario = small(precision={"form": "native", "dtype": "float64"}, baselines=[])
    unfolded = unfold(scenario)
    plan = make_plan(unfolded, unfolded.trials, cores=1, measure=False)
    assert sorted(len(chunk.trials) for chunk in plan.chunks) == [12, 12]  # one for each attack
    alone = small(precision={"form": "native", "dtype": "float64", "chunk": 1}, baselines=[])
    sweep(tmp_path / "together", scenario)
    sweep(tmp_path / "alone", alone)
    a, b = (
        {(r.seed, r.iterations, round(r.samples[0].mse, 6)) for r in Run.open(tmp_path / n).records()}
        for n in ("together", "alone")
    )
    assert a == b
    assert len(a) > 12


def test_groups_keep_apart_what_cannot_share_a_program() -> None:
    scenario = scenario_of(
        {**SMALL, "grid": {"model.hidden": [[8], [16]], "data.samples": [1, 2], "defences.0.sigma": [0, 1]}}
    )
    unfolded = unfold(scenario)
    groups = [g for g in group_trials(unfolded, unfolded.trials) if not g.baseline]
    assert len(groups) == 2 * 2 * 2  # widths, sample counts, attacks; not strengths, not seeds


class _Interrupted(ReportingWatcher):
    """Asks to stop as soon as a chunk has landed."""

    def __init__(self) -> None:
        self.number = 0

    def landed(self, landing: Landing, done: object) -> None:
        self.number += 1


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    watcher = _Interrupted()
    done = sweep(tmp_path / "r", watcher=watcher, stop=lambda: watcher.number >= 2)
    assert done.stopped
    assert 0 < done.left < 27
    assert sweep(tmp_path / "r").left == 0
    assert content(tmp_path / "r") == undisturbed
    assert len(Run.open(tmp_path / "r").plans()) == 1


@pytest.mark.slow
def test_a_changed_scenario_keeps_what_still_applies(tmp_path: Path) -> None:
    sweep(tmp_path / "r")
    before = content(tmp_path / "r")
    more = sweep(tmp_path / "r", small(trials=4, grid={"defences.0.sigma": [0, 0.02]}))
    assert more.before == 2 * 3 * 2 + 3  # sigma 0 of both attacks and both seeds, and the baseline
    assert more.left == 0
    run = Run.open(tmp_path / "r")
    assert {cell.axes.get("defences.0.sigma") for cell in run.cells()} == {0.0, 0.02, None}
    after = content(tmp_path / "r")
    assert all(after[trial] == before[trial] for trial in set(after) & set(before))
    assert len(run.plans()) == 2
    back = sweep(tmp_path / "r")
    assert (back.before, back.landed) == (27, 0)


@pytest.mark.slow
def test_a_truncated_tensor_file_is_noticed_and_its_trials_are_done_again(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    sweep(tmp_path / "r")
    victim = sorted((tmp_path / "r" / "tensors").rglob("*.safetensors"))[0]
    victim.write_bytes(victim.read_bytes()[:-7])
    again = sweep(tmp_path / "r")
    assert again.landed == 3
    assert again.left == 0
    assert content(tmp_path / "r") == undisturbed


def test_a_scenario_that_cannot_run_leaves_nothing_behind(tmp_path: Path) -> None:
    bad = small(model="lenet_cpl", data="fashion_mnist", attacks=[{"name": "analytic"}])
    with pytest.raises(InputError, match="dense layer"):
        sweep(tmp_path / "r", bad, measure=True)
    assert not (tmp_path / "r").exists()


# -- kill -9


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_at_twenty_random_moments_loses_nothing_and_doubles_nothing(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    torch.set_num_threads(1)  # a forked child must not find a pool of threads that are not there
    directory, rng, killed = tmp_path / "r", random.Random(7), 0
    longest = 0.4
    while killed < 20:
        child = os.fork()
        if child == 0:
            try:
                sweep(directory)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):  # it ended before we came: begin again, more eager
            if directory.exists() and content(directory) == undisturbed:
                directory, longest = tmp_path / f"r{killed}", max(0.05, longest * 0.7)
            continue
        killed += 1
    assert sweep(directory).left == 0
    assert content(directory) == undisturbed
    assert not list(directory.rglob("*.part"))


def test_a_group_of_few_evaluations_is_timed_and_no_form_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "data": {"name": "digits"},
        "model": {"name": "mlp"},
        "attack": {"name": "ig", "iterations": 2},
        "trials": 3,
    }
    widths: list[int] = []
    genuine = plan_module.measure_form
    monkeypatch.setattr(plan_module, "WORTH_CHOOSING", 0.0)
    monkeypatch.setattr(plan_module, "choose_form", lambda *_, **__: ("loop", {"loop": 1.0}))
    monkeypatch.setattr(
        plan_module,
        "measure_form",
        lambda model, part, form, **how: (
            widths.append(len(part.unknowns["guess"])) or genuine(model, part, form, **how)
        ),
    )
    for trials, form in ((3, "native"), (30, "loop")):
        whole = unfold(scenario_of({**told, "trials": trials}))
        made = make_plan(whole, whole.trials)
        assert {chunk.form for chunk in made.chunks if not chunk.baseline} == {form}
        assert made.seconds > 0
    assert widths == [1, 16]
