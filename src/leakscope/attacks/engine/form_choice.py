"""The fastest way to evaluate a network: forms are measured as far as the work left repays it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.attacks.engine.forms import ALONE, FORMS, STREAMS, THREADED, TRACE_AFTER, Evaluator
from leakscope.attacks.engine.state import Problem
from leakscope.attacks.objectives import find_link
from leakscope.attacks.priors import Langevin
from leakscope.attacks.simulate import LocalSteps, simulator_kinds
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import take, tensors, trials
from leakscope.kernels.graph_cache import Key, graph_key
from leakscope.kernels.lanes import lanes, spare_lanes
from leakscope.kernels.memory import is_out_of_memory
from leakscope.kernels.recordings import recorded

COMPILE_PAYS_AFTER = 120.0
MEASURING_PAYS_AFTER = 20.0  # seconds of plain evaluations: recording a form of a large network takes 1 or 2 s
MOST_RATES = 8  # networks and shapes whose measured rates are kept
LONG = 600.0  # seconds of work from which measurements take their full time
FEW = 8  # trials whose forms are measured in few evaluations
MEASURING = 0.02  # largest share of the work for finding the fastest form
GAINS = {"loop": 1.7, "vmap": 1.5}  # assumed speed-up by tracing single trials and batches; seen: 1.1 to 1.6, 1.4
TRACING_PAYS_AFTER = 200  # evaluations of one trial on a CPU: tracing costs up to 30 and saves a fifth
# of recorded forms, so that attacks of one kind on one network are measured once
_RATES: dict[Key, dict[str, float]] = {}


def narrow(problem: Problem, width: int) -> Problem:
    """Return the first trials of a problem, repeated if there are too few."""
    index = torch.arange(width) % trials(problem.unknowns)
    return take(problem, index)


def measure_form(
    model: Model, problem: Problem, form: str, *, seconds: float = 0.5, least: int = 2, traced: bool = False
) -> float:
    """Return trial-evaluations per second of a form at the problem's width (best of a few calls), traced or recorded as in a long run."""
    width = trials(problem.unknowns)
    device = next(iter(problem.unknowns.values())).device
    on_cuda = device.type == "cuda"
    # CPU seconds of one thread, where all is done by it: others may use the machine too
    clock = time.thread_time if not on_cuda and torch.get_num_threads() == 1 else time.perf_counter
    trace_after = 1 if traced and not on_cuda else TRACE_AFTER
    evaluator = Evaluator(model, problem.unknowns, problem.facts, form, trace_after=trace_after)
    iteration = _start(problem)
    best, spent, calls = float("inf"), 0.0, 0
    for _ in range(2 if trace_after == 1 else 1):
        evaluator(problem.unknowns, iteration)
    evaluate: Callable[..., object] = evaluator
    if traced and on_cuda:
        evaluate = recorded(evaluator, (problem.unknowns, iteration)) or evaluator
    while calls < least or (spent < seconds and calls < 30):
        _wait(device)
        began = clock()
        evaluate(problem.unknowns, iteration)
        _wait(device)
        took = clock() - began
        best, spent, calls = min(best, took), spent + took, calls + 1
    return width / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose_form(
    model: Model,
    problem: Problem,
    device: torch.device,
    evaluations: float,
    *,
    native: float | None = None,
    live: int | None = None,
    fits: Callable[[str, int], bool] = lambda *_: True,
) -> tuple[str, dict[str, float]]:
    """Return the fastest form for this network, shape and device, and the measured rates for `live` trials (default: all).

    Spare lanes (see `lanes`) slow down the forms that evaluate them: a single trial of a network with two classes has 16 copies.
    Measuring stops after a share `MEASURING` of the work: two plain forms always, then the likeliest of the others, traced forms
    last. `native` is a rate measured before. `fits` says whether another form fits into memory at a width.
    """
    if device.type == "cuda":
        form, rates = _choose_on_cuda(model, problem, evaluations)
        return form if fits(form, trials(problem.unknowns)) else "native", rates
    began = time.perf_counter()
    width, threads = trials(problem.unknowns), torch.get_num_threads()
    counts = {form: _share_live(form, live or width, model, problem, device) for form in FORMS}
    least = 1 if width <= FEW else 2
    rates = {
        "native": counts["native"]
        * (native or measure_form(model, problem, "native", seconds=0.1 * (least - 1), least=least))
    }

    def work() -> float:
        return width * evaluations / max(rates.values())

    def try_form(form: str, part: Problem = problem, *, traced: bool = False) -> None:
        if not fits(form, trials(part.unknowns)):
            return
        try:
            rate = measure_form(model, part, form, seconds=min(0.5, work() / LONG / 2), traced=traced)
        except (RuntimeError, InputError) as error:
            if is_out_of_memory(error):
                raise
            return  # not every network can be run in every form, such as `view` with channels last
        rates[form] = max(rates.get(form, 0.0), counts[form] * rate)

    def in_time() -> bool:
        return time.perf_counter() - began < MEASURING * work()

    if work() > LONG:
        try_form("native")
    try_form("loop", narrow(problem, min(width, 2)))
    if in_time() and (width > FEW or rates["native"] > rates.get("loop", 0.0)):
        try_form("im2col")
    few = narrow(problem, min(width, 2 * threads))
    hopeful = _hopeful_forms(model, rates, counts)
    if width <= FEW and evaluations >= TRACING_PAYS_AFTER and "parallel" in hopeful:
        layout = _faster_layout(model, narrow(problem, 1))
        try_form(layout, few)
        hopeful = [form for form in hopeful if form not in THREADED]
    for form in hopeful:
        if in_time():
            alone = form in THREADED
            try_form(form, few if alone else problem, traced=not alone)
    return max(rates, key=lambda form: rates[form]), rates


def form_of_one(
    model: Model, problem: Problem, evaluations: float, fits: Callable[[str, int], bool] = lambda *_: True
) -> str:
    """Return the form of a single trial: on the network's own kernels, or on a CPU their trace on one core where that pays.

    It pays for long runs of networks too small to gain from several threads, which a few evaluations on each number show; so does
    the layout of the traced images.
    """
    on_cpu = next(iter(problem.unknowns.values())).device.type == "cpu"
    if not on_cpu or evaluations < TRACING_PAYS_AFTER or not fits("parallel", 1):
        return "loop"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        form = _faster_layout(model, problem)
        alone = measure_form(model, problem, "loop", seconds=0.0, least=3) if threads > 1 else 0.0
    finally:
        torch.set_num_threads(threads)
    if threads > 1 and GAINS["loop"] * alone < measure_form(model, problem, "loop", seconds=0.0, least=1):
        return "loop"
    try:
        Evaluator(model, problem.unknowns, problem.facts, form)(problem.unknowns, _start(problem))
    except (RuntimeError, InputError) as error:
        if is_out_of_memory(error):
            raise
        return "loop"  # it cannot be traced
    return form


def _faster_layout(model: Model, problem: Problem) -> str:
    """Return the form of traced single trials with the faster layout of images, by untraced evaluations on one thread."""
    wide = any(value.ndim == 4 and min(value.shape[2:]) > 3 for value in model.parameters.values())
    if len(model.input_shape) != 3 or (wide and problem.facts.knowledge.samples == 1):
        return "parallel"  # of one image with kernels over 3 x 3 it uses other kernels (`for_cpu`), twice as fast
    took = dict.fromkeys(THREADED, float("inf"))
    for form in THREADED * 3:
        evaluator = Evaluator(model, problem.unknowns, problem.facts, form)
        began = time.thread_time()  # others may use the machine too
        try:
            evaluator.first_untraced(problem.unknowns, _start(problem))
        except (RuntimeError, InputError) as error:
            if is_out_of_memory(error):
                raise
            return "parallel"  # such as `view` with channels last
        took[form] = min(took[form], time.thread_time() - began)
    return min(took, key=lambda form: took[form])


def _start(problem: Problem) -> Tensor:
    """Return iteration 0 of every trial."""
    first = next(iter(problem.unknowns.values()))
    return torch.zeros(len(first), dtype=torch.int64, device=first.device)


def _choose_on_cuda(model: Model, problem: Problem, evaluations: float) -> tuple[str, dict[str, float]]:
    """Return the form for a CUDA device, and the recorded rates if measuring pays.

    Short runs are not measured: they use one batch, or streams if a trial has more images than there are trials; so do runs
    that one batch, kernel by kernel, does in seconds. Measuring ends when it has taken a tenth of the work left. For long runs where
    a batch is fastest it is compiled without measuring, which was fastest in every case measured
    (docs/explanation/performance.md); where single trials are, compiling is measured if minutes are left.
    """
    width = trials(problem.unknowns)
    plain = measure_form(model, narrow(problem, 1), "loop", seconds=0.0, least=1)
    if width * evaluations / plain < MEASURING_PAYS_AFTER:
        return "loop" if width <= problem.facts.knowledge.samples else "im2col", {}
    soon = width * evaluations / (MEASURING_PAYS_AFTER / 4)  # a rate at which measuring does not pay
    key = graph_key("rates", same=(model,), inputs=problem.facts, flat=tensors((problem.unknowns, problem.facts)))
    rates: dict[str, float] = _RATES.setdefault(key, {})
    if len(_RATES) > MOST_RATES:  # a key keeps its network alive
        del _RATES[next(iter(_RATES))]
    began = time.perf_counter()

    def left() -> float:
        return width * evaluations / max(rates.values(), default=plain)

    def try_form(form: str, part: Problem = problem) -> None:
        if form not in rates:
            try:
                rates[form] = measure_form(model, part, form, seconds=0.2, traced=True)
            except (RuntimeError, InputError) as error:
                if is_out_of_memory(error):
                    raise

    if "im2col" not in rates and _rate_of_first(model, problem) > soon:
        return "im2col", {}
    for form in ("im2col", "native", "loop"):
        if left() > 10 * (time.perf_counter() - began):
            try_form(form, narrow(problem, min(width, STREAMS)) if form == "loop" else problem)
    best = max(rates, key=lambda form: rates[form], default="loop")
    if left() > COMPILE_PAYS_AFTER and _may_be_compiled(model, problem):
        if best != "loop":
            return "compiled", dict(rates)
        if width > 1 and left() > LONG:
            try_form("compiled")
    return max(rates, key=lambda form: rates[form], default="loop"), dict(rates)


def forget_rates() -> None:
    """Forget the measured rates, as a new process does."""
    _RATES.clear()


def _rate_of_first(model: Model, problem: Problem) -> float:
    """Return the rate of one batch kernel by kernel, 0 where the network cannot be run so."""
    try:
        return measure_form(model, problem, "im2col", seconds=0.0, least=1)
    except (RuntimeError, InputError) as error:
        if is_out_of_memory(error):
            raise
        return 0.0


def _hopeful_forms(model: Model, rates: dict[str, float], shares: dict[str, float]) -> list[str]:
    """Return the CPU forms that may beat all measured so far, given the typical gain from tracing."""
    threads = torch.get_num_threads()
    hopes = dict.fromkeys(THREADED, GAINS["loop"] * rates["loop"] * threads)
    if len(model.input_shape) != 3:
        del hopes["channels_last"]
    if threads > 1:
        hopes["split"] = GAINS["vmap"] * rates["native"] * threads * shares["split"] / shares["native"]
    hopes |= {form: GAINS["vmap"] * rates[form] for form in ("native", "im2col") if form in rates}
    hopeful = [form for form, rate in hopes.items() if rate > max(rates.values())]
    return [] if len(hopeful) == 1 and hopeful[0] in rates else hopeful  # a single form needs no comparison


def _may_be_compiled(model: Model, problem: Problem) -> bool:
    """Return whether an evaluation may be compiled: not with random draws (unreliable) or simulated steps (too many operations)."""
    pieces = problem.facts.components
    noisy = any(find_link(prior, Langevin) for prior in pieces.priors)
    return not (model.draws or noisy or LocalSteps in simulator_kinds(pieces.simulate))


def _share_live(form: str, live: int, model: Model, problem: Problem, device: torch.device) -> float:
    """Return the share of the lanes evaluated by a form that belong to live trials."""
    if form in ALONE:
        return 1.0
    spare = spare_lanes(model, problem.facts.knowledge, device)
    parts = torch.get_num_threads() if form == "split" else 1
    return live / (parts * lanes(-(-live // parts), spare))
