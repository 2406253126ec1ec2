"""The record and tensors that a chunk stores for every trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.analysis.linear_system import inspect_layer
from leakscope.attacks.exact.analytic import first_layer
from leakscope.attacks.exact.linear_system import index_set
from leakscope.core.model import Model
from leakscope.core.record import COURSE, Record, SampleScore
from leakscope.core.types import Batch, Knowledge, Observation, Outcome
from leakscope.core.version import __version__
from leakscope.metrics.context import Context
from leakscope.metrics.scoring import clean, trial_means
from leakscope.metrics.text_scoring import text_means
from leakscope.play import AttackResult
from leakscope.sweep.trials import Trial

EMPTY = -1  # in place of a token: a sentence or a part of one that was not found


def trial_tensors(truth: Batch, result: AttackResult) -> dict[str, Tensor]:
    """Return the stored tensors of each trial: the result unrounded, start and snapshots as bytes for display."""
    guess = result.reconstruction
    if truth.tokens:
        return _sentence_tensors(truth, result)
    return {
        "truth": truth.inputs.contiguous(),
        "inputs": guess.inputs.contiguous(),
        "labels": guess.labels.contiguous(),
        "pairing": result.scores.pairing.contiguous(),
        "start": _bytes(guess.start),
        "snapshots": _bytes(guess.snapshots),
        "snapshots_at": guess.snapshots_at.to(torch.int32).contiguous(),
        "trace": guess.trace.to(torch.float32).contiguous(),
        "trace_at": guess.trace_at.to(torch.int32).contiguous(),
        **{f"{COURSE}{name}": course.to(torch.float32).contiguous() for name, course in guess.courses.items()},
    }


def _sentence_tensors(truth: Batch, result: AttackResult) -> dict[str, Tensor]:
    """Return the stored tensors of trials of sentences: token numbers, and which guesses the update proves (0 or 1)."""
    guess = result.reconstruction
    proved = torch.zeros(guess.inputs.shape[:2]) if guess.proved is None else guess.proved
    return {
        "truth": truth.inputs.to(torch.int32).contiguous(),
        "inputs": guess.inputs.nan_to_num(EMPTY).to(torch.int32).contiguous(),
        "labels": guess.labels.contiguous(),
        "pairing": result.scores.pairing.contiguous(),
        "proved": proved.to(torch.int32).contiguous(),
        "trace": guess.trace.to(torch.float32).contiguous(),
        "trace_at": guess.trace_at.to(torch.int32).contiguous(),
    }


def with_metrics(
    names: Sequence[str], truth: Batch, result: AttackResult, context: Context | None = None
) -> AttackResult:
    """Return the result with the mean of each named metric, beside the numbers that the attack learned."""
    guess = result.reconstruction
    if truth.tokens:
        return replace(result, reconstruction=replace(guess, learned={**guess.learned, **_text_scores(result)}))
    means = trial_means(names, truth.inputs, guess.inputs, result.scores, context)
    return replace(result, reconstruction=replace(guess, learned={**guess.learned, **means})) if means else result


def _text_scores(result: AttackResult) -> dict[str, Tensor]:
    """Return the mean scores of every trial's sentences, and of an attack that proves some, the share of true ones among these."""
    means, guess = text_means(result.scores), result.reconstruction
    if guess.proved is not None:
        paired = guess.proved.gather(1, result.scores.pairing) & result.recovered
        means["proved_share"] = paired.double().mean(1)
    return means


def trial_records(
    trials: Sequence[Trial], cells: Mapping[int, str], truth: Batch, result: AttackResult, seconds: float
) -> tuple[Record, ...]:
    """Return the record of each trial; `cells` maps cell numbers to ids, `seconds` is the time of one trial."""
    guess, scores, recovered = result.reconstruction, result.scores, result.recovered
    return tuple(
        Record(
            trial=trial.id,
            cell=cells[trial.cell],
            number=trial.number,
            seed=trial.seed,
            items=trial.items,
            outcome=Outcome(int(guess.outcome[row])).name.lower(),
            iterations=int(guess.iterations[row]),
            evaluations=int(guess.evaluations[row]),
            mismatch=_number(guess.mismatch[row]),
            label_overlap=None if scores.label_overlap is None else _number(scores.label_overlap[row]),
            seconds=seconds,
            version=__version__,
            samples=_samples(row, truth, result, recovered),
            learned={name: float(value[row]) for name, value in guess.learned.items() if bool(value[row].isfinite())},
        )
        for row, trial in enumerate(trials)
    )


def _samples(row: int, truth: Batch, result: AttackResult, recovered: Tensor) -> tuple[SampleScore, ...]:
    guess, scores = result.reconstruction, result.scores
    correct = scores.label_correct
    return tuple(
        SampleScore(
            sample=sample,
            label=int(truth.labels[row, sample]),
            guess=None if correct is None else int(guess.labels[row, scores.pairing[row, sample]]),
            mse=float(scores.mse[row, sample]),
            psnr=float(scores.psnr[row, sample]),
            ssim=_number(scores.ssim[row, sample]),
            label_correct=None if correct is None else bool(correct[row, sample]),
            recovered=bool(recovered[row, sample]),
            finite=bool(scores.finite[row, sample]),
        )
        for sample in range(truth.samples)
        if bool(scores.scored[row, sample])
    )


def _bytes(images: Tensor) -> Tensor:
    return (clean(images) * 255).round().to(torch.uint8)


def _number(value: Tensor) -> float | None:
    return float(value) if bool(torch.isfinite(value)) else None


def theory_of(model: Model, clean: Observation, seen: Observation, knowledge: Knowledge) -> dict[str, Tensor]:
    """Return norms, condition, error bound and error of each trial's linear system; not finite if it has none."""
    entry = model.entry
    if entry is None or entry.bias is None:
        return {}
    weight, bias, _ = first_layer(entry.weight, entry.bias, clean, knowledge)
    noisy_weight, noisy_bias, pairs = first_layer(entry.weight, entry.bias, seen, knowledge)
    units = index_set(noisy_weight, noisy_bias, pairs)
    report = inspect_layer(weight, bias, noisy_weight, noisy_bias, units)
    return {
        "norm_b": report.norm_b,
        "norm_e": report.norm_e,
        "norm_inverse_e": report.norm_inverse_e,
        "condition": report.condition,
        "condition_2": report.holds.double().where(report.applicable, float("nan")),  # error_bound needs it
        "error_bound": report.bound,
        "error": report.error,
    }
