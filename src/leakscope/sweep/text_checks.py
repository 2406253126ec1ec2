"""Checks of cells on sentences: data, network, attack, metrics and null baselines must all be of sentences, or none of them."""

from __future__ import annotations

from leakscope.attacks.null import BASELINES, TEXT_BASELINES
from leakscope.attacks.tokens.readings import TEXT_ATTACKS
from leakscope.attacks.tokens.token_attacks import TOKEN_ATTACKS
from leakscope.core.errors import InputError
from leakscope.data import Dataset
from leakscope.play.text_baselines import LEAST_PUBLIC
from leakscope.scenario.cell import CellSettings
from leakscope.scenario.problems import Problem
from leakscope.servers.catalogue import OF_SENTENCES
from leakscope.sweep.objects import IMAGES, other_part, settings_for


def text_misfits(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return the parts of a cell that are for sentences where its data are none, or the other way round."""
    text, client = data.kind == "text", settings.client
    problems, attack = list[Problem](), settings.recipe.name
    try:
        settings_for(settings.model, data)
    except InputError as error:
        problems.append(Problem(("model",), str(error)))
    if (attack in (*TEXT_ATTACKS, *OF_SENTENCES)) != text:
        needs = f"is for {IMAGES}: {data.name} needs one of {', '.join((*TEXT_ATTACKS, *OF_SENTENCES))}"
        problems.append(
            Problem(("attack",), f"{attack} {needs if text else f'is for sentences, {data.name} holds none'}")
        )
    usable = TEXT_BASELINES if text else BASELINES
    if unfit := [name for name in settings.baselines if name not in usable]:
        problems.append(Problem(("baselines",), f"{unfit[0]} does not suit {data.name}: use {', '.join(usable)}"))
    if not text:
        return problems
    if settings.metrics:
        words = "is for pictures and tables; sentences always have ROUGE-1, -2, -L and the recall of tokens"
        problems.append(Problem(("metrics", 0), f"metric {settings.metrics[0]!r} {words}"))
    for name, part in (("on_data", client.on_data), ("on_model", client.on_model)):
        if part is not None:
            problems.append(Problem(("client", name), f"{name} is for pictures, not for sentences"))
    if client.aggregation.dropouts or client.aggregation.skew > 1:
        problems.append(Problem(("client", "aggregate"), "clients of sentences all answer and have the same size"))
    if settings.knowledge.defence and settings.recipe.name in TOKEN_ATTACKS:
        words = f"{settings.recipe.name} uses no fact about a defence: leave it out, or false"
        problems.append(Problem(("knowledge", "defence"), words))
    if settings.baselines and data.size(other_part(settings.data.part)) < LEAST_PUBLIC:
        problems.append(Problem(("baselines",), f"null baselines need {LEAST_PUBLIC} public sentences"))
    return problems
