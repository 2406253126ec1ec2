"""Speed of the engine against the usual autograd loop, side by side in one process.

One evaluation is the gradient of the matching objective with respect to the unknowns of one trial. The loop runs one trial at
a time, on one or all threads, whichever is faster. The interval is of the ratio over pairs. Imports torch and numpy only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.engine.form_choice import forget_rates, measure_form, narrow
from leakscope.attacks.engine.forms import TRACE_AFTER, Evaluator
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution, make_plan
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.optimisers import LBFGS
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.core.types import make_batch
from leakscope.kernels.recordings import captured
from leakscope.models import Uniform, build, draw_parameters
from leakscope.studies.bench_cases import CASES, MAIN, Case, Setup, loop_attack, plain_loop, set_up
from leakscope.studies.bench_few import ITERATIONS, FewTiming, measure_few
from leakscope.studies.bench_few import PAIRS as FEW_PAIRS
from leakscope.studies.bench_large import LARGE, LargeTiming, measure_large

PAIRS = 20
ATTACK_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of one case; the interval holds 95 % of the pairs' ratios."""

    name: str
    device: str
    forms_per_s: dict[str, float]
    trials: int
    images: int
    form: str
    tf32: bool
    loop_threads: int
    loop_per_s: float
    engine_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    pairs: int
    attack_iterations: int
    attack_loop_trials_per_s: float
    attack_engine_trials_per_s: float
    attack_ratio: float  # the first attack of a process: choosing a form counts
    attack_again: tuple[
        float, float, float
    ]  # of later ones in the form of a long run, compiled before: median, least, largest

    @property
    def line(self) -> str:
        """Return the timing as one line of the table."""
        middle, least, largest = self.attack_again
        return (
            f"{self.name:<10} {self.trials:>6} {self.form:<9} {self.loop_per_s:>10.1f} {self.engine_per_s:>12.1f} {self.ratio:>8.1f}x  "
            f"[{self.ratio_low:.1f}, {self.ratio_high:.1f}]  n={self.pairs:<3}  "
            f"{self.attack_ratio:.1f}x, {middle:.1f}x ({least:.1f} to {largest:.1f}, n={ATTACK_PAIRS})"
        )


def _clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _seconds(f: Callable[[], object], device: str) -> float:
    began = _clock(device)
    f()
    return _clock(device) - began


def _on_threads(threads: int, f: Callable[[], object], device: str) -> float:
    """Return the seconds of `f` on the given number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _seconds(f, device)
    finally:
        torch.set_num_threads(before)


def _best_threads(f: Callable[[], object], device: str) -> int:
    """Return the number of threads, one or all, on which the loop is faster; by the median of five calls each."""
    everything = torch.get_num_threads()
    took: dict[int, list[float]] = {1: [], everything: []}
    f()
    for _ in range(5):
        for threads, seconds in took.items():
            seconds.append(_on_threads(threads, f, device))
    return min(took, key=lambda threads: _quantile(took[threads], 0.5))


def _quantile(values: list[float], share: float) -> float:
    return float(torch.tensor(sorted(values), dtype=torch.float64).quantile(share))


def measure(
    case: Case,
    device: str,
    *,
    pairs: int = PAIRS,
    tf32: bool = False,
    form: str | None = None,
    say: Callable[[str], None],
) -> Timing:
    """Return the timing of one case."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    setup, number = set_up(case, device), case.trials[device]
    loop = plain_loop(setup, device)
    asked, (form, rates, engine) = form, _warm_engine(case, setup, device, form, say)
    few = min(number, 8)
    best = _best_threads(lambda: [loop(i) for i in range(few)], device)
    say(
        f"{case.name}: {pairs} interleaved pairs (the loop on {best} of {torch.get_num_threads()} threads, its better number)"
    )
    loops, engines = _interleaved(lambda: [loop(i) for i in range(few)], engine, (few, number), best, pairs, device)
    ratios = [e / p for e, p in zip(engines, loops, strict=True)]
    low, middle, high = (_quantile(ratios, share) for share in (0.025, 0.5, 0.975))
    say(f"{case.name}: {middle:.1f} times the loop")
    attack_loops, first, again = _attack_rates(case, setup, device, (asked, form), best, say)
    later = [a / b for a, b in zip(again, attack_loops, strict=True)]
    return Timing(
        name=case.name,
        device=device,
        trials=number,
        images=case.images[device],
        form=form,
        tf32=tf32,
        loop_threads=best,
        loop_per_s=_quantile(loops, 0.5),
        engine_per_s=_quantile(engines, 0.5),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        pairs=pairs,
        forms_per_s={name: round(rate, 2) for name, rate in rates.items()},
        attack_iterations=case.iterations,
        attack_loop_trials_per_s=_quantile(attack_loops, 0.5),
        attack_engine_trials_per_s=first,
        attack_ratio=first / _quantile(attack_loops, 0.5),
        attack_again=(_quantile(later, 0.5), min(later), max(later)),
    )


def _warm_engine(
    case: Case, setup: Setup, device: str, form: str | None, say: Callable[[str], None]
) -> tuple[str, dict[str, float], Callable[[], object]]:
    """Return the form (of a long run if not given), the rates of the forms, and one evaluation in it as a long run has it."""
    number, rates = case.trials[device], dict[str, float]()
    if form is None:
        say(f"{case.name}: measuring the forms")
        plan = make_plan(setup.model, setup.problem, Execution(device=device, chunk=number), 1e9)
        form, rates = plan.form, plan.measured
    evaluator = Evaluator(setup.model, setup.problem.unknowns, setup.problem.facts, form, trace_after=1)
    arguments = setup.problem.unknowns, torch.zeros(number, dtype=torch.int64, device=device)
    say(f"{case.name}: warming up ({form}{', compiling' if form == 'compiled' else ''})")
    began = time.perf_counter()
    evaluator(*arguments)
    play = captured(evaluator, arguments) if device == "cuda" else evaluator
    for _ in range(2):
        play(*arguments)
    if form == "compiled":
        rates["compile_seconds"] = time.perf_counter() - began
    return form, rates, lambda: play(*arguments)


def _interleaved(
    loop: Callable[[], object],
    engine: Callable[[], object],
    trials: tuple[int, int],  # per call of the loop and of the engine
    threads: int,
    pairs: int,
    device: str,
) -> tuple[list[float], list[float]]:
    """Return the trials per second of loop and engine, measured in turn, so that noise of a shared machine affects both."""
    repeat = max(1, int(0.05 / max(_seconds(engine, device), 1e-6)))
    loops, engines = [], []
    for _ in range(pairs):
        loops.append(trials[0] / _on_threads(threads, loop, device))
        engines.append(repeat * trials[1] / _seconds(lambda: [engine() for _ in range(repeat)], device))
    return loops, engines


def _attack_rates(
    case: Case, setup: Setup, device: str, forms: tuple[str | None, str], threads: int, say: Callable[[str], None]
) -> tuple[list[float], float, list[float]]:
    """Return trials per second of whole attacks: of the loop, of the engine's first, of later ones in the second of the forms."""
    lbfgs = isinstance(case.matching.optimiser, LBFGS)
    say(f"{case.name}: whole attacks of {case.iterations} iterations")
    short = replace(case.matching, stop=Stop(iterations=case.iterations))

    def engine(form: str | None) -> float:
        execution = Execution(device=device, chunk=len(setup.seeds), form=form)
        arguments = setup.model, setup.observation, setup.knowledge, setup.seeds, execution
        return len(setup.seeds) / _seconds(lambda: short.run(*arguments), device)

    one = min(2, len(setup.seeds))

    def loop() -> float:
        def attacks() -> list[Tensor]:
            return [loop_attack(setup, i, device, case.iterations, lbfgs) for i in range(one)]

        return one / _on_threads(threads, attacks, device)

    forget_rates()
    first = engine(forms[0])
    pairs = [(loop(), engine(forms[1])) for _ in range(ATTACK_PAIRS)]
    return [pair[0] for pair in pairs], first, [pair[1] for pair in pairs]


def optimiser_share(device: str, trials: int = 64, iterations: int = 12) -> dict[str, float]:
    """Return the relative overhead of optimiser and bookkeeping over the evaluations of a CPL run: average, at full history."""
    model = build("lenet_cpl", (1, 28, 28), 10)
    seeds = list(range(trials))
    keys = random.key(seeds)
    batch = make_batch(random.uniform(keys, (1, 1, 28, 28)), (keys % 10)[:, None], classes=10)
    client = Client()
    observation = client.observe(model, draw_parameters(model, Uniform(0.5), keys), batch, seeds)
    how = cpl(iterations=iterations, threshold=0.0)
    problem, _ = how.prepare(
        model, observation, attacker_knowledge(model, client, batch), seeds, Execution(device=device)
    )
    form = "native" if device == "cpu" else "im2col"
    engine = Engine(model, problem, how.stop, form)
    engine.run()
    ticks = engine.seconds[TRACE_AFTER + 1 :] if device == "cpu" else engine.seconds[4:]
    width = engine.width(trials)
    alone = width / measure_form(model, narrow(problem, width), form, seconds=2.0, least=20, traced=True)
    full = ticks[-len(ticks) // 3 :]
    return {
        "average": _quantile(ticks, 0.5) / alone - 1,
        "full_history": _quantile(full, 0.5) / alone - 1,
        "ticks": float(engine.tick),
    }


def run(
    names: Sequence[str],
    device: str,
    *,
    pairs: int = PAIRS,
    tf32: bool = False,
    form: str | None = None,
    iterations: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Timing | FewTiming | LargeTiming]:
    """Return the timings of the named cases; `iterations` replaces each case's number for whole attacks."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("this machine has no CUDA device; use --device cpu")
    if pairs < 2:
        raise InputError(f"--pairs must be at least 2, got {pairs}")
    timings: list[Timing | FewTiming | LargeTiming] = []
    for name in names:
        case = lookup({**CASES, **dict.fromkeys(LARGE)}, name, "benchmark case")
        if case is None:
            timings.append(measure_large(name, tf32=tf32, iterations=iterations))
        elif device == "cpu" and name not in MAIN:
            timings.append(measure_few(case, iterations=iterations or ITERATIONS, pairs=min(pairs, FEW_PAIRS)))
        else:
            case = case if iterations is None else replace(case, iterations=iterations)
            timings.append(measure(case, device, pairs=pairs, tf32=tf32, form=form, say=say))
        say(timings[-1].line)
    return timings


def as_json(timings: Sequence[Timing | FewTiming | LargeTiming], shares: dict[str, float] | None) -> str:
    """Return the timings as JSON."""
    return json.dumps(
        {"cases": [asdict(t) for t in timings], "optimiser_share": shares, "torch": torch.__version__}, indent=2
    )


def as_text(timings: Sequence[Timing | FewTiming | LargeTiming], shares: dict[str, float] | None) -> str:
    """Return the timings as a text table."""
    head = f"{'case':<10} {'trials':>6} {'form':<9} {'loop/s':>10} {'engine/s':>12} {'ratio':>9}  95 % of pairs"
    head += "      whole attack: first, later (range)"
    lines = [head] if any(isinstance(timing, Timing) for timing in timings) else []
    lines += [timing.line for timing in timings]
    if shares is not None:
        lines.append(
            f"optimiser and bookkeeping add {shares['average']:.0%} to the evaluations on average, "
            f"{shares['full_history']:.0%} at full history (CPL on 28x28, {int(shares['ticks'])} ticks)"
        )
    return "\n".join(lines)
