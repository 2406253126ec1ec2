"""The null baselines of a sweep: what one gets without the update."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.attacks.null import class_mean
from leakscope.attacks.recipes import prior_only
from leakscope.core.types import Batch, Knowledge
from leakscope.play import AttackResult, judge
from leakscope.play.baselines import nearest_public, public_part
from leakscope.play.text_baselines import guess_sentences
from leakscope.scenario.cell import BaselineSettings
from leakscope.sweep.objects import batch_of, data_of, scaling_of


def play_baseline(
    settings: BaselineSettings, items: Sequence[tuple[int, ...]], seeds: Sequence[int]
) -> tuple[Batch, AttackResult]:
    """Return the private batches of trials and what a null baseline scores on them."""
    data = data_of(settings.data)
    truth = batch_of(data, settings.data.part, items)
    if truth.tokens:
        return truth, judge(truth, guess_sentences(settings.name, truth, data, settings.data.part, seeds))
    public, labels = public_part(data, settings.data.part)
    scaling = scaling_of(settings.data)
    knowledge = Knowledge(data.input_shape, data.classes, truth.samples, scaling=scaling, labels=truth.labels)
    if settings.name == "class_mean":
        guess = class_mean(public, labels, classes=data.classes).guess(knowledge, truth.trials)
    elif settings.name == "prior_only":
        guess = prior_only().guess(knowledge, list(seeds))
    else:
        guess = nearest_public(truth, public, labels, classes=data.classes).reconstruction
    return truth, judge(truth, guess)
