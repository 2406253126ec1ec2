"""The engine's laws: a trial does not feel its neighbours, runs repeat, state survives, memory is respected."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.attacks.conftest import World, world
from torch import Tensor, nn

from leakscope.attacks.attack import Matching, best_restart
from leakscope.attacks.engine import footprint, form_choice, plan
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution, make_plan
from leakscope.attacks.engine.state import Progress, Recorder, Stop, spaced
from leakscope.attacks.optimisers import LBFGS, SGD, Adam, Rule
from leakscope.attacks.recipes import cpl, dlg, idlg, ig
from leakscope.attacks.starts import Normal
from leakscope.core.errors import InputError
from leakscope.core.tree import flat_names, take, tensors
from leakscope.core.types import Outcome, Reconstruction
from leakscope.kernels.hoisting import Hoisted
from leakscope.kernels.memory import peak_bytes
from leakscope.models import from_module

QUICK = cpl(iterations=4)


def little(trials: int) -> World:
    """The same network on small pictures, where a law does not hang on its size."""
    return world(trials, shape=(1, 12, 12))


def attack(w: World, chosen: list[int], how: Matching = QUICK, **settings: object) -> Reconstruction:
    execution = Execution(**{"form": "native", **settings})  # type: ignore[arg-type]
    return how.run(
        w.model, take(w.observation, torch.tensor(chosen)), w.knowledge, [w.seeds[i] for i in chosen], execution
    )


def same_bits(a: Reconstruction, b: Reconstruction) -> bool:
    return all(
        torch.equal(torch.nan_to_num(x), torch.nan_to_num(flat_names(b)[name])) for name, x in flat_names(a).items()
    )


@pytest.mark.parametrize(
    ("form", "threads"),
    [
        pytest.param("native", 1, marks=pytest.mark.slow),
        pytest.param("channels_last", 1, marks=pytest.mark.slow),
        pytest.param("parallel", 1, marks=pytest.mark.slow),
        pytest.param("split", 2, marks=pytest.mark.slow),
        pytest.param("im2col", 1, marks=pytest.mark.slow),
        pytest.param("native", 2, marks=pytest.mark.slow),
        pytest.param("im2col", 2, marks=pytest.mark.slow),
        pytest.param("split", 3, marks=pytest.mark.slow),
    ],
)
def test_a_trial_has_the_same_bits_alone_among_others_and_permuted(form: str, threads: int) -> None:
    torch.set_num_threads(threads)
    w = world(6)
    quick = cpl(iterations=2)
    everyone = attack(w, list(range(6)), quick, form=form)
    for i in (0, 5):
        assert same_bits(attack(w, [i], quick, form=form), take(everyone, slice(i, i + 1)))
    order = [4, 0, 3, 1, 2, 5]
    assert same_bits(attack(w, order, quick, form=form), take(everyone, torch.tensor(order)))
    assert same_bits(attack(w, [1, 2, 5], quick, form=form, chunk=2), take(everyone, torch.tensor([1, 2, 5])))


@pytest.mark.slow
def test_colour_pictures_and_dense_networks_keep_their_bits_too() -> None:
    torch.set_num_threads(2)
    for name, shape in (("lenet_dlg", (3, 32, 32)), ("mlp", (1, 28, 28))):
        w = world(5, name=name, shape=shape, settings={"activation": "tanh"})
        everyone = attack(w, list(range(5)), cpl(iterations=2))
        assert same_bits(attack(w, [4], cpl(iterations=2)), take(everyone, slice(4, 5)))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_and_another_seed_another_start() -> None:
    w = little(3)
    once, again = attack(w, [0, 1, 2]), attack(w, [0, 1, 2])
    assert same_bits(once, again)
    other = QUICK.run(w.model, w.observation, w.knowledge, [5, 6, 7], Execution(form="native"))
    assert not torch.equal(other.start, once.start)
    assert len({once.start[i].numpy().tobytes() for i in range(3)}) == 3


@pytest.mark.slow
def test_a_diverging_trial_leaves_its_neighbours_bits_alone() -> None:
    w = world(6, settings={"activation": "leaky_relu"}, a=0.1)
    rate = torch.tensor([1.0, 1.0, 1e30, 1.0, 1.0, 1.0])
    wild = attack(w, list(range(6)), cpl(iterations=2, optimiser=LBFGS(rate)))
    calm = attack(w, list(range(6)), cpl(iterations=2, optimiser=LBFGS(torch.ones(6))))
    assert wild.outcome[2] == Outcome.DIVERGED
    others = torch.tensor([0, 1, 3, 4, 5])
    assert same_bits(take(wild, others), take(calm, others))
    assert torch.isfinite(wild.inputs).all(), "a diverged trial is scored at its last finite step"


@pytest.mark.slow
def test_compaction_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(6)
    how = cpl(iterations=12)
    compacted = attack(w, list(range(6)), how)
    monkeypatch.setattr(Engine, "_should_compact", lambda self, state: False)
    assert same_bits(attack(w, list(range(6)), how), compacted)
    assert len(set(compacted.iterations.tolist())) > 1, "trials end at different times, so lanes were retired"


@pytest.mark.slow
def test_traced_evaluations_have_the_bits_of_untraced_ones() -> None:
    w = world(3)
    problem, _ = QUICK.prepare(w.model, w.observation, w.knowledge, w.seeds)
    torch.set_num_threads(2)
    for form in ("native", "split", "im2col"):
        evaluate = Evaluator(w.model, problem.unknowns, problem.facts, form, trace_after=2)
        zero = torch.zeros(3, dtype=torch.int64)
        results = [evaluate(problem.unknowns, zero) for _ in range(4)]
        assert all(torch.equal(r.gradient["guess"], results[0].gradient["guess"]) for r in results)
        assert isinstance(evaluate._call, Hoisted)


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("lenet_dlg", (1, 28, 28), None),
        pytest.param("resnet20", (3, 32, 32), {"width": 4}, marks=pytest.mark.slow),
        ("cnn_mnist", (1, 28, 28), None),
    ],
)
def test_forms_agree_on_one_evaluation(name: str, shape: tuple[int, ...], settings: dict[str, object] | None) -> None:
    w = world(2, name=name, shape=shape, dtype=torch.float64, settings=settings, a=0.1)
    problem, _ = ig().prepare(w.model, w.observation, w.knowledge, w.seeds, Execution(dtype="float64"))
    zero = torch.zeros(2, dtype=torch.int64)
    first, *others = [
        Evaluator(w.model, problem.unknowns, problem.facts, form)(problem.unknowns, zero)
        for form in ("native", "split", "im2col", "parallel", "channels_last", "loop")
    ]
    for other in others:
        torch.testing.assert_close(other.gradient, first.gradient, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other.total, first.total, rtol=1e-9, atol=1e-12)


def test_an_evaluation_in_float64_does_not_depend_on_its_neighbours() -> None:
    w = world(7, dtype=torch.float64)
    problem, _ = QUICK.prepare(w.model, w.observation, w.knowledge, w.seeds, Execution(dtype="float64"))
    whole = Evaluator(w.model, problem.unknowns, problem.facts, "native")(problem.unknowns, torch.zeros(7).long())
    part = take(problem, torch.tensor([3]))
    alone = Evaluator(w.model, part.unknowns, part.facts, "native")(part.unknowns, torch.zeros(1).long())
    torch.testing.assert_close(alone.gradient["guess"][0], whole.gradient["guess"][3], rtol=1e-12, atol=1e-12)


class CutError(Exception):
    pass


@pytest.mark.slow
def test_a_run_cut_in_the_middle_goes_on_from_its_saved_state_to_the_same_bits(tmp_path: Path) -> None:
    w = little(7)
    how = cpl(iterations=10)
    whole = attack(w, list(range(7)), how, directory=tmp_path / "whole")
    ticks = 0

    def cut(progress: Progress) -> None:
        nonlocal ticks
        ticks += 1
        if progress.evaluations > 30:
            raise CutError

    tell = Engine._report
    try:
        Engine._report = lambda self, state, force=False, note="": cut(  # type: ignore[method-assign, assignment, return-value]
            Progress(0, 0, 0, 0, 0, self.tick)
        )
        with pytest.raises(CutError):
            attack(w, list(range(7)), how, directory=tmp_path / "cut", save_every=0.0)
    finally:
        Engine._report = tell  # type: ignore[method-assign]
    assert list((tmp_path / "cut").glob("chunk-*.safetensors"))
    resumed = attack(w, list(range(7)), how, directory=tmp_path / "cut", form=None)
    assert same_bits(resumed, whole)
    assert not list((tmp_path / "cut").glob("chunk-*")), "a finished chunk leaves no state behind"


def test_a_directory_of_another_run_is_refused_in_one_line(tmp_path: Path) -> None:
    w = little(3)
    attack(w, [0, 1, 2], cpl(iterations=1), directory=tmp_path)
    with pytest.raises(InputError, match="holds another run"):
        attack(w, [0, 1], cpl(iterations=1), directory=tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"stamp": 1, "chunks": 3}', '"' * 3, "[" * 100_000])
def test_a_damaged_plan_and_a_damaged_state_are_dropped(tmp_path: Path, text: str) -> None:
    w = little(3)
    whole = attack(w, [0, 1, 2], cpl(iterations=1), directory=tmp_path)
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    (tmp_path / "chunk-0-3.safetensors").write_bytes(b"nonsense")
    with pytest.warns(UserWarning, match="readable"):
        again = attack(w, [0, 1, 2], cpl(iterations=1), directory=tmp_path)
    assert same_bits(again, whole)
    assert json.loads((tmp_path / "plan.json").read_text())["chunks"] == [[0, 3]]


@pytest.mark.parametrize("chunks", [[], [[0, 2]], [[0, 10**9]], [[1, 3]], [[0, 2], [1, 3]], [[0, 0]]])
def test_a_plan_whose_chunks_do_not_cover_the_trials_is_dropped(tmp_path: Path, chunks: list[list[int]]) -> None:
    w = little(3)
    attack(w, [0, 1, 2], cpl(iterations=1), directory=tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "chunks": chunks}), encoding="utf-8")
    with pytest.warns(UserWarning, match="readable plan"):
        assert len(attack(w, [0, 1, 2], cpl(iterations=1), directory=tmp_path).mismatch) == 3


@pytest.mark.slow
def test_the_plan_is_written_down_and_followed(tmp_path: Path) -> None:
    w, short = little(5), cpl(iterations=1)
    attack(w, list(range(5)), short, form="im2col", chunk=2, directory=tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["form"] == "im2col"
    assert plan["chunks"] == [[0, 2], [2, 4], [4, 5]]
    # the second run asks for nothing and follows the first one's plan
    followed = attack(w, list(range(5)), short, form=None, directory=tmp_path)
    assert same_bits(followed, attack(w, list(range(5)), short, form="im2col", chunk=2))


@pytest.mark.slow
def test_out_of_memory_halves_the_chunk_writes_the_plan_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(6)
    calm = attack(w, list(range(6)))
    run = Engine.run

    def small_memory(self: Engine) -> object:
        if self.total > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return run(self)

    monkeypatch.setattr(Engine, "run", small_memory)
    with pytest.warns(UserWarning, match="out of memory"):
        halved = attack(w, list(range(6)), directory=tmp_path)
    assert same_bits(halved, calm)
    assert json.loads((tmp_path / "plan.json").read_text())["chunks"] == [[0, 2], [2, 3], [3, 5], [5, 6]]


def test_a_trial_that_does_not_fit_by_itself_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_: Engine) -> object:
        raise MemoryError

    monkeypatch.setattr(Engine, "run", no_memory)
    with pytest.raises(InputError, match=r"one trial .*cpu.*fewer images"):
        attack(world(1), [0])


def test_the_memory_limit_shrinks_chunks_and_too_little_is_said_so() -> None:
    w = world(8)
    problem, _ = QUICK.prepare(w.model, w.observation, w.knowledge, w.seeds)
    assert make_plan(w.model, problem, Execution(form="native"), 10).chunks == ((0, 8),)
    three = make_plan(w.model, problem, Execution(form="native", chunk=3, memory=2**40), 10).bytes
    assert make_plan(w.model, problem, Execution(form="native", memory=three), 10).chunks == ((0, 3), (3, 6), (6, 8))
    with pytest.raises(InputError, match=r"one trial .*1000 bytes"):
        make_plan(w.model, problem, Execution(form="native", memory=1000), 10)


def test_finding_out_that_nothing_fits_stays_within_the_limit() -> None:
    w = world(8)
    problem, _ = QUICK.prepare(w.model, w.observation, w.knowledge, w.seeds)
    lane = problem.unknowns["guess"][0].nbytes * 2 * LBFGS().history  # the memory of one lane of L-BFGS
    limit = footprint.BASE + 4 * lane

    def refused() -> None:
        with pytest.raises(InputError):
            make_plan(w.model, problem, Execution(memory=limit), 10)

    seen = sum(t.nbytes for t in tensors(problem))  # views of it are counted as it
    assert lane < peak_bytes(refused) - seen < 4 * lane


def test_a_form_that_needs_too_much_memory_is_not_used() -> None:
    w = world(4)
    problem, _ = QUICK.prepare(w.model, w.observation, w.knowledge, w.seeds)
    vmapped, alone = (
        make_plan(w.model, problem, Execution(form=form, chunk=1, memory=2**40), 10).bytes
        for form in ("native", "loop")
    )
    assert alone < vmapped
    tight = make_plan(w.model, problem, Execution(memory=(alone + vmapped) // 2), 10)
    assert tight.form == "loop"


def test_peak_bytes_counts_what_lives_at_once_not_what_was_made() -> None:
    def chain() -> Tensor:
        x = torch.zeros(1000)
        for _ in range(50):
            x = x + 1
        return x

    assert 4000 <= peak_bytes(chain) <= 3 * 4000
    assert peak_bytes(lambda: [torch.zeros(1000) for _ in range(50)]) >= 50 * 4000


@pytest.mark.parametrize(("form", "trials"), [("native", 1), ("im2col", 9), ("loop", 9)])
def test_the_predicted_memory_of_a_chunk_counts_spare_lanes_and_its_form(form: str, trials: int) -> None:
    w = world(trials)
    quick = cpl(iterations=1, optimiser=LBFGS(inner=2))
    problem, _ = quick.prepare(w.model, w.observation, w.knowledge, w.seeds)
    run = Execution(form=form, memory=2**40)
    predicted = make_plan(w.model, problem, run, 10, quick.stop).bytes - footprint.BASE
    traced = make_plan(w.model, problem, run, 100, Stop(iterations=100)).bytes - footprint.BASE
    assert (traced > predicted + footprint.NODE * 100) == (form != "loop")
    stored = sum(t.nbytes for t in tensors(problem))
    counted = stored + peak_bytes(Engine(w.model, problem, Stop(iterations=1), form).run)
    assert counted <= predicted <= 1.6 * counted


def test_outcomes_converged_exhausted_stalled_diverged() -> None:
    w = little(2)
    assert attack(w, [0], cpl(iterations=25)).outcome.tolist() == [Outcome.CONVERGED]
    assert attack(w, [0], cpl(iterations=1)).outcome.tolist() == [Outcome.EXHAUSTED]
    still = replace(ig(iterations=50, threshold=0.0), optimiser=SGD(1e-30), stop=Stop(iterations=50, patience=5))
    stalled = attack(w, [0], still)
    assert stalled.outcome.tolist() == [Outcome.STALLED]
    assert stalled.iterations.tolist() == [5]
    leaky = world(1, settings={"activation": "leaky_relu"})
    assert attack(leaky, [0], cpl(iterations=9, optimiser=SGD(1e30))).outcome.tolist() == [Outcome.DIVERGED]


def test_a_threshold_of_zero_is_never_reached() -> None:
    w = world(1)
    still = replace(ig(iterations=3), objective=lambda view: -view.unknowns["guess"].square().mean())
    assert attack(w, [0], still).mismatch.max() < 0
    assert attack(w, [0], still).outcome.tolist() == [Outcome.EXHAUSTED]


@pytest.mark.slow
def test_an_iteration_of_lbfgs_is_one_torch_step_and_of_adam_one_evaluation() -> None:
    w = little(1)
    assert attack(w, [0], cpl(iterations=3, threshold=0.0)).evaluations.tolist() == [61]
    assert attack(w, [0], ig(iterations=7)).evaluations.tolist() == [8]


@pytest.mark.slow
def test_traces_and_snapshots_tell_the_way() -> None:
    w = world(1)
    r = attack(w, [0], cpl(iterations=4, threshold=0.0))
    assert r.trace_at[0].tolist() == list(range(5))
    assert torch.isfinite(r.trace).all()
    assert float(r.trace[0, -1]) == float(r.mismatch[0]) < float(r.trace[0, 0])
    assert torch.equal(r.snapshots[0, 0], r.start[0])
    assert torch.equal(r.snapshots[0, -1], r.inputs[0])
    early = attack(w, [0], cpl(iterations=300))
    unseen = early.trace_at[0] < 0
    assert unseen.any()
    assert torch.isnan(early.trace[0][unseen]).all()
    assert early.trace_at.shape[1] == len({*spaced(300, 256), *range(290, 301)}), "the last ten are all there"
    assert spaced(4800, 256)[-1] == 4800
    assert len(spaced(4800, 256)) == len(set(spaced(4800, 256))) == 256


def test_a_filmed_end_has_the_guess_of_each_of_the_last_iterations_and_changes_nothing_else() -> None:
    assert Recorder(Stop(550)).snapshots_at == spaced(550, 16)
    assert Recorder(Stop(550, film_end=True)).snapshots_at == sorted({*spaced(550, 16), *range(540, 551)})
    w = world(1, name="linear", shape=(1, 4, 4))
    plain = ig(iterations=17)
    usual, filmed = (attack(w, [0], replace(plain, stop=replace(plain.stop, film_end=on))) for on in (False, True))
    at = filmed.snapshots_at[0].tolist()
    assert set(range(7, 18)) < set(at)
    assert torch.equal(filmed.inputs, usual.inputs)
    assert torch.equal(filmed.inputs, filmed.snapshots[:, -1])
    assert torch.equal(filmed.snapshots[:, [at.index(i) for i in usual.snapshots_at[0].tolist()]], usual.snapshots)


@pytest.mark.slow
def test_the_best_restart_is_chosen_by_mismatch_alone() -> None:
    w = world(3)
    many = attack(w, [0, 1, 2], cpl(iterations=2, start=Normal(), restarts=4))
    one = attack(w, [0, 1, 2], cpl(iterations=2, start=Normal()))
    assert many.inputs.shape == one.inputs.shape
    assert (many.mismatch <= one.mismatch).all()
    assert (many.mismatch < one.mismatch).any()


@pytest.mark.slow
def test_progress_counts_all_chunks() -> None:
    w = little(5)
    seen: list[Progress] = []
    attack(w, list(range(5)), cpl(iterations=20), chunk=2, progress=seen.append)
    assert seen[-1].total == seen[-1].done == 5
    assert seen[-1].converged > 0
    assert all(a.done <= b.done for a, b in itertools.pairwise(seen))


class Reader(nn.Module):
    """A network with control flow that depends on the data, which vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.dense = nn.Flatten(), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().sum()) > 1e9:
            x = x * 2
        return self.dense(torch.sigmoid(self.flat(x)))


def test_a_network_vmap_cannot_do_runs_in_a_loop_with_a_warning_and_the_same_results() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Sigmoid(), nn.Linear(64, 10))
    odd = Reader()
    odd.dense.load_state_dict({k.removeprefix("2."): v for k, v in plain.state_dict().items()})
    w = world(3, shape=(1, 8, 8), name="linear")
    results = []
    for module, form in ((odd, None), (plain, "loop")):
        model = from_module(module, input_shape=(1, 8, 8))
        weights = {n: p.expand(3, *p.shape) for n, p in model.parameters.items()}
        observation = w.client.observe(model, weights, w.batch, w.seeds)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append(dlg(iterations=3).run(model, observation, w.knowledge, w.seeds, Execution(form=form)))
        said = [str(c.message) for c in caught if "one by one" in str(c.message)]
        assert bool(said) == (form is None)
    assert torch.equal(results[0].inputs, results[1].inputs)


@pytest.mark.slow
def test_an_attack_in_a_process_that_never_had_the_truth_gives_the_same_bytes(tmp_path: Path) -> None:
    w = world(2)
    here = attack(w, [0, 1])
    seen = w.observation.rounds[0]
    save_file(
        {
            **{f"before/{n}": t.contiguous() for n, t in seen.before.items()},
            **{f"sent/{n}": t for n, t in seen.sent.items()},
        },
        tmp_path / "seen.safetensors",
    )
    code = f"""
import torch
from safetensors.torch import load_file, save_file
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.core.types import Knowledge, Observation, Round, Shares
from leakscope.models import build
torch.set_num_threads(1)
flat = load_file({str(tmp_path / "seen.safetensors")!r})
part = lambda p: {{n.removeprefix(p): t for n, t in flat.items() if n.startswith(p)}}
observation = Observation((Round(part("before/"), {{}}, part("sent/")),), Shares.GRADIENT, torch.ones(2, dtype=torch.int64))
made = cpl(iterations=4).run(build("lenet_cpl"), observation, Knowledge((1, 28, 28), 10, 1), {w.seeds!r}, Execution(form="native"))
save_file({{"inputs": made.inputs.contiguous(), "labels": made.labels}}, {str(tmp_path / "made.safetensors")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    there = load_file(tmp_path / "made.safetensors")
    assert there["inputs"].numpy().tobytes() == here.inputs.contiguous().numpy().tobytes()
    assert there["labels"].tolist() == here.labels.tolist()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Stop(threshold=-1.0), "threshold .*below 0"),
        (lambda: Stop(iterations=0), "iterations .*least 1"),
        (lambda: Execution(dtype="float16"), "dtype must be"),
        (lambda: Execution(form="fast"), "form must be"),
        (
            lambda: Execution(device="cuda") if not torch.cuda.is_available() else Stop(threshold=-1),
            "no CUDA|threshold",
        ),
        (lambda: cpl(labels="argmin"), "label rule 'argmin'"),
        (lambda: cpl(alpha=-1), "alpha"),
        (lambda: cpl(restarts=0), "restarts .*least 1"),
        (lambda: Adam(0.0), "rate .*above 0"),
    ],
)
def test_impossible_settings_get_one_clear_line(make: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_observations_that_do_not_fit_get_one_clear_line() -> None:
    w = world(2)
    bad = replace(w.observation.rounds[0], sent={**w.observation.rounds[0].sent, "odd": torch.zeros(2)})
    with pytest.raises(InputError, match=r"'odd'.*parameter"):
        QUICK.run(w.model, replace(w.observation, rounds=(bad,)), w.knowledge, w.seeds)
    name = next(iter(w.observation.rounds[0].sent))
    hole = {**w.observation.rounds[0].sent, name: w.observation.rounds[0].sent[name] * float("nan")}
    with pytest.raises(InputError, match="holds NaN"):
        QUICK.run(
            w.model, replace(w.observation, rounds=(replace(w.observation.rounds[0], sent=hole),)), w.knowledge, w.seeds
        )
    with pytest.raises(InputError, match="2 trials, 3 seeds"):
        QUICK.run(w.model, w.observation, w.knowledge, [1, 2, 3])
    with pytest.raises(InputError, match=r"'alpha'.*unknown"):
        replace(QUICK, rules={"alpha": Rule()}).run(w.model, w.observation, w.knowledge, w.seeds)


def test_recipes_have_the_published_settings() -> None:
    assert (dlg().stop.iterations, dlg().labels, dlg().optimiser) == (300, "joint", LBFGS(1.0, 20, 100, 1e-7, 1e-9))
    assert (cpl().stop.threshold, cpl().start.tiles) == (1e-4, 2)  # type: ignore[attr-defined]
    assert idlg().labels == "idlg"
    rule = ig().rules["guess"]
    assert (rule.sign, rule.schedule.milestones) == (True, (1799, 2999, 4203))  # type: ignore[union-attr]


class Viewer(nn.Module):
    """A convolution whose output is read with `view`, which memory with channels last does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.dense = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(torch.sigmoid(self.convolution(x)).view(x.shape[0], -1))


@pytest.mark.slow
def test_a_form_that_a_network_cannot_take_is_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_choice, "GAINS", {"loop": 1e9, "vmap": 1e9})
    monkeypatch.setattr(form_choice, "MEASURING", 1e9)
    w = world(2, shape=(3, 8, 8), name="linear")
    model = from_module(Viewer(), input_shape=(3, 8, 8))
    weights = {n: p.expand(2, *p.shape) for n, p in model.parameters.items()}
    seen = w.client.observe(model, weights, w.batch, w.seeds)
    problem, _ = QUICK.prepare(model, seen, w.knowledge, w.seeds)
    best, rates = form_choice.choose_form(model, problem, torch.device("cpu"), 10.0)
    assert "parallel" in rates
    assert "channels_last" not in rates
    assert best in rates
    with pytest.raises(InputError, match="channels last"):
        QUICK.run(model, seen, w.knowledge, w.seeds, Execution(form="channels_last"))


@pytest.mark.parametrize(("evaluations", "chosen"), [(plan.FEW // 4, []), (plan.FEW // 4 + 1, [4])])
def test_a_run_that_is_shorter_than_choosing_a_form_chooses_none(
    evaluations: int, chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(plan, "choose_form", lambda *_, live, **__: asked.append(live) or ("loop", {}))
    w = world(4)
    problem, _ = QUICK.prepare(w.model, w.observation, w.knowledge, w.seeds)
    made = plan.make_plan(w.model, problem, Execution(), float(evaluations))
    assert asked == chosen
    assert made.form == ("loop" if chosen else "native")


@pytest.mark.parametrize(("live", "best"), [(1, "loop"), (400, "native")])
def test_copies_laid_out_in_spare_count_against_the_forms_that_evaluate_them(
    live: int, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"native": 100.0, "im2col": 80.0, "loop": 40.0}
    monkeypatch.setattr(form_choice, "measure_form", lambda _model, _problem, form, **_: rates[form])
    monkeypatch.setattr(form_choice, "MEASURING", 0.0)
    w = world(4)
    problem, _ = QUICK.prepare(w.model, w.observation, w.knowledge, w.seeds)
    chosen, measured = form_choice.choose_form(w.model, problem, torch.device("cpu"), 10.0, live=live)
    assert chosen == best
    spare = form_choice.spare_lanes(w.model, w.knowledge, torch.device("cpu"))
    assert spare > 0
    assert measured["native"] == pytest.approx(100.0 * live / form_choice.lanes(live, spare))
    assert measured["loop"] == 40.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_bits_do_not_depend_on_neighbours_in_networks_with_narrow_layers(hidden: int) -> None:
    w = world(19, name="mlp", shape=(1, 8, 8), settings={"hidden": [hidden]}, labels=True)
    quick = dlg(iterations=2)
    whole = quick.run(w.model, w.observation, w.knowledge, w.seeds, Execution(form="native", chunk=32))
    for chosen in ([0], [18], [3, 4, 5], list(range(18, 8, -1))):
        index = torch.tensor(chosen)
        own = [w.seeds[i] for i in chosen]
        part = quick.run(
            w.model, take(w.observation, index), take(w.knowledge, index), own, Execution(form="native", chunk=32)
        )
        assert torch.equal(part.inputs, whole.inputs[index])


def test_a_diverged_restart_is_never_the_best() -> None:
    w = world(1)
    finished = SimpleNamespace(
        mismatch=torch.tensor([0.5, 0.1, 0.3]),
        outcome=torch.tensor([int(Outcome.EXHAUSTED), int(Outcome.DIVERGED), int(Outcome.CONVERGED)]),
    )
    assert best_restart(finished, 3).tolist() == [2]  # type: ignore[arg-type]
    assert w.model.draws is False


@pytest.mark.parametrize(
    ("evaluations", "one_thread", "traceable", "form"),
    [(199, 1.0, True, "loop"), (200, 1.0, True, "parallel"), (200, 1.0, False, "loop"), (200, 0.1, True, "loop")],
)
def test_a_single_trial_is_traced_for_one_core_where_that_pays(
    evaluations: int, one_thread: float, traceable: bool, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one thread a large network would wait for the others; what cannot be traced runs as it is."""

    def refuse(*_: object) -> None:
        raise RuntimeError("it cannot be traced")

    def rate(*_: object, **__: object) -> float:
        return one_thread if torch.get_num_threads() == 1 else 1.0

    monkeypatch.setattr(form_choice, "measure_form", rate)
    monkeypatch.setattr(form_choice, "_faster_layout", lambda *_: "parallel")
    if not traceable:
        monkeypatch.setattr(Evaluator, "_single", refuse)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        w = world(1)
        problem, _ = cpl().prepare(w.model, w.observation, w.knowledge, w.seeds)
        assert form_choice.form_of_one(w.model, problem, evaluations) == form
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
