"""The public examples that an insider's attack begins from: of the same class, from the part the client's are not from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.starts import Insider
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import lift
from leakscope.data import Dataset, Part
from leakscope.scenario.cell import CellSettings
from leakscope.scenario.insider import PublicExample
from leakscope.scenario.problems import Problem


def is_insider(attack: Attack) -> bool:
    """Return whether an attack begins from a public example."""
    return isinstance(attack, Matching) and isinstance(attack.start, PublicExample)


def begun_from(attack: Attack, pictures: Tensor) -> Attack:
    """Return an insider's attack with the pictures (T x N x input_shape, in [0, 1]) it begins from."""
    return replace(attack, start=Insider(pictures)) if isinstance(attack, Matching) else attack


def other_part(part: Part) -> Part:
    """Return the part of a data set that private examples of this part are not from."""
    return "train" if part == "test" else "test"


def public_examples(data: Dataset, private: Part, labels: Tensor, seeds: Sequence[int]) -> Tensor:
    """Return for labels (T x N) public pictures of the same classes, T x N x input_shape in [0, 1].

    Picture n of a trial is drawn uniformly among the public examples of class `labels[t, n]`, by a fold of the trial's seed
    that no client uses; a trial's pictures do not depend on its neighbours.
    """
    part = other_part(private)
    known = data.labels(part, slice(None))
    keys = random.fold(random.key(list(seeds)), "insider")
    drawn = lift(lambda key: random.uniform(key, (labels.shape[1],)))(keys)
    places = torch.zeros_like(labels)
    for label in labels.unique().tolist():
        of_class = (known == label).nonzero()[:, 0]
        if not len(of_class):
            raise InputError(f"an insider needs a public example of class {label}, {data.name} {part} has none")
        positions = labels == label
        places[positions] = of_class[(drawn[positions] * len(of_class)).long().clamp_max(len(of_class) - 1)]
    return data.pictures(part, places.reshape(-1)).reshape(*labels.shape, *data.input_shape)


def insider_misfits(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return that some class of the clients has no public example, where the attack begins from one."""
    if not is_insider(settings.attack):
        return []
    part = settings.data.part
    public = set(data.labels(other_part(part), slice(None)).tolist())
    lacking = sorted(set(data.labels(part, slice(None)).tolist()) - public)
    if not lacking:
        return []
    message = f"{data.name} {other_part(part)} has no example of class {lacking[0]}"
    more = f" and of {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return [Problem(("attack", "start"), f"insider needs a public example of every class; {message}{more}")]
