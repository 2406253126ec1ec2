"""The dishonest server of a token network: manipulations of sentences on the same clients, beside the null baselines of sentences."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import DEFAULT
from leakscope.auditing.dishonest_server import NOT_BUILT, Dishonest
from leakscope.auditing.limits import first_line
from leakscope.auditing.suite import Untested
from leakscope.auditing.tokens.verdict import CLOSER
from leakscope.auditing.verdict import HALF, TWENTIETH, Grade, Measures
from leakscope.core.errors import InputError
from leakscope.core.threat_models import threat_model_of
from leakscope.metrics.interval import Estimate, estimate_mean, estimate_rate
from leakscope.metrics.text import score_text
from leakscope.play import Exposure, reconstruct, shared_weights
from leakscope.play.dishonest import expose_manipulated
from leakscope.play.text_baselines import LEAST_PUBLIC, most_frequent, null_guesses
from leakscope.servers.catalogue import MANIPULATIONS, OF_SENTENCES

TRAPS = tuple(MANIPULATIONS[name]() for name in OF_SENTENCES)


def play_on_tokens(exposure: Exposure, public: Tensor) -> Dishonest:
    """Return what a manipulation gets from the clients of an exposure; `public` are sentences (M x L) that none of them holds."""
    reads, untested = dict[str, Tensor](), list[Untested]()
    for trap in TRAPS:
        if len(public) < LEAST_PUBLIC:
            few = f"it needs {LEAST_PUBLIC} public sentences, and the sample has {len(public)} that no client holds"
            untested.append(Untested(trap.name, few))
            continue
        honest = shared_weights(exposure.model, exposure.trials)
        given = (trap, exposure.model, exposure.client, honest, exposure.batch, public.float(), exposure.seeds)
        try:
            seen = expose_manipulated(*given)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "labels are drawn at random")  # no line here has labels
                reads[trap.name] = reconstruct(seen, trap, DEFAULT).inputs.long()
        except (InputError, RuntimeError, MemoryError) as error:
            untested.append(Untested(trap.name, first_line(error)))
    if not reads:
        return _result(Grade.UNTESTED, None, (), 0, "", len(public), untested)
    results = [_scored(exposure, name, read, public, untested) for name, read in reads.items()]
    return max(results, key=lambda result: result.recovered)


def _scored(exposure: Exposure, name: str, read: Tensor, public: Tensor, untested: Sequence[Untested]) -> Dishonest:
    """Return what a manipulation read, beside the null baselines."""
    frequent = most_frequent(public)
    whole, tokens, rouge, null_rouge = [], [], [], []
    for number, (truth, guess) in enumerate(zip(exposure.batch.inputs.long().tolist(), read.tolist(), strict=True)):
        scores = score_text(truth, guess)
        nulls = null_guesses(truth, frequent, public, exposure.seeds[0] + number, None)
        guessed = [score_text(truth, each) for each in nulls.values()]
        whole.append(scores.exact.bool() & ~torch.stack([each.exact.bool() for each in guessed]).any(0))
        pairs = zip(truth, scores.paired, strict=True)
        tokens.append(torch.tensor([sum(a == b for a, b in zip(x, y, strict=False)) / len(x) for x, y in pairs]))
        rouge.append(scores.rouge1)
        null_rouge.append(torch.stack([each.rouge1 for each in guessed]).mean(1).max())
    found, every = torch.stack(whole), torch.ones(len(whole), len(whole[0]), dtype=torch.bool)
    asr, placed = estimate_rate(found, every), estimate_mean(torch.stack(tokens).double(), every, within=(0.0, 1.0))
    ahead = float(torch.stack(rouge).mean() - torch.stack(null_rouge).mean())
    line = (
        f"{name}: {_percent(asr)} of sentences whole, {_percent(placed)} of tokens in their places; ROUGE-1 "
        f"{float(torch.stack(rouge).mean()):.2f}, of the best null baseline {float(torch.stack(null_rouge).mean()):.2f}"
    )
    return _result(_grade(asr.value, ahead), asr, (line,), int(found.sum()), name, len(public), untested)


def _grade(share: float, ahead: float) -> Grade:
    """Return the grade of text, never a good one: other manipulations may do what this one cannot."""
    if share >= TWENTIETH:
        return Grade.F if share >= HALF else Grade.D
    return Grade.C if share > 0 or ahead >= CLOSER else Grade.INCONCLUSIVE


def _percent(share: Estimate) -> str:
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f} %, n = {share.n})"


def _result(
    grade: Grade,
    asr: Estimate | None,
    lines: tuple[str, ...],
    recovered: int,
    worst: str,
    public: int,
    untested: Sequence[Untested],
) -> Dishonest:
    return Dishonest(
        grade=grade,
        measures=Measures(asr=asr),
        runs=(),
        worst=worst,
        recovered=recovered,
        untested=(*untested, NOT_BUILT),
        short=(),
        public=public,
        threat_model=threat_model_of(local=True, public=True, manipulates=True),
        text=lines,
    )
