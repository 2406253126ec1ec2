"""The attacks of an audit whose user chose them: of the suite, of the catalogue, or of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.aware import aware
from leakscope.attacks.known_policy import KnownPolicy
from leakscope.attacks.labels import JOINT
from leakscope.attacks.recipes import ATTACKS
from leakscope.auditing.suite import ALL_ROUNDS, INFORMED, TARGETS, Entry, Untested, knows_more, labels_problem
from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.core.types import IMAGE_RANK, Knowledge
from leakscope.play import Exposure
from leakscope.scenario.registration import SUITE

Recipe = Callable[..., Attack]
Chosen = str | Attack | Recipe
LEFT_OUT = "left out: it is not among the attacks that were asked for"


def choose_attacks(
    entries: Sequence[Entry], untested: Sequence[Untested], attacks: Sequence[Chosen] | None, exposure: Exposure
) -> tuple[list[Entry], list[Untested]]:
    """Return the attacks to run and what is not tested, which includes what was left out of the suite; None: the suite as it is.

    An attack is a name ("suite" for the whole suite), a recipe (a function that returns an attack) or an attack.
    """
    if attacks is None:
        return list(entries), list(untested)
    if isinstance(attacks, str) or not attacks:
        raise InputError(f"attacks must be a list of names, recipes or attacks, got {attacks!r:.60}")
    known = {suite_name(entry.name) for entry in entries}
    wanted = known if SUITE in attacks else known & {item for item in attacks if isinstance(item, str)}
    settled = {SUITE, *known, *(item.what for item in untested)}
    names = {*settled, *(entry.name for entry in entries)}
    run = [entry for entry in entries if suite_name(entry.name) in wanted]
    gaps = [*untested, *(Untested(each.name, LEFT_OUT, left_out=True) for each in entries if each not in run)]
    for item in attacks:
        if isinstance(item, str) and item in settled:
            continue
        own, problems = _entries(item, exposure, names)
        run, gaps = [*run, *own], [*gaps, *problems]
        names |= {entry.name for entry in own}
    return run, gaps


def suite_name(name: str) -> str:
    """Return the name of an attack of the suite, whether or not it knows the defences or the targets, or reads all rounds."""
    return name.removesuffix(ALL_ROUNDS).removesuffix(f", {INFORMED}").removesuffix(f", {TARGETS}")


def _entries(item: Chosen, exposure: Exposure, taken: set[str]) -> tuple[list[Entry], list[Untested]]:
    """Return the entries of one attack, with the variant that knows the defences, and why one cannot be run."""
    recipe = lookup(ATTACKS, item, "attack") if isinstance(item, str) else _recipe(item)
    attack = recipe()
    name, number = item if isinstance(item, str) else attack.name, 2
    while name in taken:
        name, number = f"{attack.name} ({number})", number + 1
    core = attack.base if isinstance(attack, KnownPolicy) else attack
    most = core.stop.iterations if isinstance(core, Matching) else None
    informed = exposure.informed if knows_more(exposure.knowledge, exposure.informed) else None
    variant = f"{name}, {INFORMED}"
    if not isinstance(attack, Matching):  # it is given all that may be known, and uses what it can
        make = _maker(recipe, exposure, None)
        return [Entry(variant if informed else name, make, most, informed=informed is not None, own=True)], []
    plain = Entry(name, _maker(recipe, exposure, None), most, own=True)
    if informed is None:
        return [plain], []
    try:
        aware(attack, informed)
    except InputError as error:
        return [plain], [Untested(variant, str(error))]
    return [plain, Entry(variant, _maker(recipe, exposure, informed), most, informed=True, own=True)], []


def _recipe(item: Attack | Recipe) -> Recipe:
    """Return a function that makes the attack."""
    if callable(getattr(item, "run", None)) and not isinstance(item, type):
        return lambda: cast(Attack, item)
    if not callable(item):
        raise InputError(f"an attack must be a name, a recipe or an attack with a method run, got {item!r:.60}")
    return item


def _maker(recipe: Recipe, exposure: Exposure, informed: Knowledge | None) -> Callable[[int], Attack]:
    """Return a function of the iterations that makes the attack for this model, as the suite's attacks are made."""
    knowledge, settings = exposure.knowledge, dict[str, object]()
    if knowledge.labels is None and labels_problem(exposure.model, knowledge, exposure.observation.shares) is not None:
        settings["labels"] = JOINT
    if len(knowledge.input_shape) < IMAGE_RANK:
        settings["tv"] = 0.0  # columns of a table have no spatial order
    known = inspect.signature(recipe).parameters

    def make(iterations: int) -> Attack:
        given = ({"iterations": iterations} if iterations else {}) | settings  # an exact attack has 0
        attack = recipe(**{key: value for key, value in given.items() if key in known})
        if not isinstance(attack, Matching):
            return attack
        attack = replace(attack, stop=replace(attack.stop, iterations=iterations))
        return attack if informed is None else aware(attack, informed)

    return make
