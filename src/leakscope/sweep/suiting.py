"""What an attack asks of its client, of what it is told and of the network: said when the scenario is read, by its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.known_policy import KnownPolicy
from leakscope.attacks.labels import JOINT, check_head, chosen_rule
from leakscope.attacks.objectives import compares_lengths
from leakscope.attacks.priors import TotalVariation
from leakscope.attacks.simulate import LocalSteps, OnTheLine, simulator_kinds
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.scenario.problems import Problem

ONE_EXAMPLE = ("idlg", "cpl")


class MisfitError(InputError):
    """A problem that shows only when a cell is played; `cell` is its id, so that whoever has the file can name the line."""

    def __init__(self, problem: Problem, cell: str) -> None:
        """Keep the problem; the text is its message."""
        super().__init__(problem.message)
        self.problem, self.cell = problem, cell

    def __reduce__(self) -> tuple[type[MisfitError], tuple[Problem, str]]:
        """Return how to make it again in another process."""
        return type(self), (self.problem, self.cell)


def attack_misfits(settings: Mapping[str, Any], attack: Attack, model: Model) -> list[Problem]:
    """Return why the attack of a cell cannot work on its client, with what it is told."""
    if isinstance(attack, KnownPolicy):
        return _policy_misfits(settings, attack)
    if not isinstance(attack, Matching):
        return []
    found = [
        Problem(("attack",), _update_misfit(settings, attack) or _sign_misfit(settings, attack)),
        Problem(("attack", "labels"), _rule_misfit(settings, attack, model)),
        *_prior_misfits(settings["attack"], attack, model),
        Problem(("knowledge", "dropout"), _dropout_misfit(settings)),
    ]
    return [problem for problem in found if problem.message]


def _policy_misfits(settings: Mapping[str, Any], attack: KnownPolicy) -> list[Problem]:
    """Return what the attacker who looks through transformations lacks."""
    if not settings["knowledge"]["defence"]:
        words = "needs to be told of the client's transformations: give knowledge.defence: true, or use ig"
        return [Problem(("attack",), f"{attack.name} {words}")]
    if settings["client"]["rounds"] > 1 and settings["client"]["on_data"] is not None:
        words = "looks through one round: a client draws its transformations anew in every round"
        return [Problem(("client", "rounds"), f"{attack.name} {words}")]
    return []


def _sign_misfit(settings: Mapping[str, Any], attack: Matching) -> str:
    """Return why an attacker who was told that signs are sent cannot use it; nothing where he can."""
    signs = any(piece["name"] == "sign" for piece in settings["defences"])
    if not signs or not settings["knowledge"]["defence"] or LocalSteps not in simulator_kinds(attack.simulate):
        return ""
    words = "compares differences of weights, and signs have no size: use sme or ig_update, or give knowledge.defence: false"
    return f"{attack.name} {words}"


def _prior_misfits(told: Mapping[str, Any], attack: Matching, model: Model) -> list[Problem]:
    """Return that a prior is for pictures where the inputs are none: a setting `tv`, or a piece of an attack of one's own."""
    if len(model.input_shape) >= 3 or not any(isinstance(prior, TotalVariation) for prior in attack.priors):
        return []
    shape = "x".join(map(str, model.input_shape))
    where, remedy = (("attack", "tv"), "give tv: 0") if "tv" in told else (("attack", "priors"), "leave it out")
    return [Problem(where, f"total variation is for pictures, an input here is {shape}: {remedy}")]


def _dropout_misfit(settings: Mapping[str, Any]) -> str:
    """Return why the masks of the client cannot be given to the attacker; nothing where they can."""
    several = settings["client"]["local"] is not None or settings["client"]["rounds"] > 1
    if not several or not settings["knowledge"]["dropout"] or not settings["model"].get("dropout"):
        return ""
    return (
        "the masks can be known for one gradient in one round: local steps and further rounds draw masks of their own"
    )


def _update_misfit(settings: Mapping[str, Any], attack: Matching) -> str:
    """Return why the attack does not suit what the client shares and the attacker knows of it; nothing where it does."""
    local, told = settings["client"]["local"], settings["knowledge"]["local"]
    kinds = simulator_kinds(attack.simulate)
    if local is None:
        needs = kinds & {OnTheLine, LocalSteps}
        words = "needs weights after local training, this client shares a gradient: give client.local, or use ig"
        return f"{attack.name} {words}" if needs else ""
    if LocalSteps in kinds:
        words = (
            "simulates the client's local steps: give knowledge.local: true, or use sme or ig_update, which need none"
        )
        return "" if told else f"{attack.name} {words}"
    if OnTheLine in kinds or not compares_lengths(attack.objective):
        return ""
    if not told:
        words = "a change of weights has the length of a gradient only by the rate: give knowledge.local: true"
        return f"{attack.name} compares lengths, and {words}, or use ig, ig_update or sme"
    simulated = settings["knowledge"]["defence"]  # who knows the defences simulates the steps
    if local["optimiser"] == "adam" and not simulated:
        words = "after Adam an update's says nothing of the gradient's: use ig_update, sme or dlfa"
        return f"{attack.name} compares lengths, and {words}"
    return ""


def _rule_misfit(settings: Mapping[str, Any], attack: Matching, model: Model) -> str:
    """Return why the attack's rule cannot read the labels, another loss than cross entropy aside; nothing where it can."""
    samples, told = settings["data"]["samples"], settings["knowledge"]["labels"]
    rule = chosen_rule(attack.labels, samples, told=told)
    if rule == JOINT:
        return ""
    if rule == "known":
        words = f"give knowledge.labels: true, or attack.labels: {'cpl' if samples == 1 else 'counts'} or {JOINT}"
        return "" if told else f"label rule 'known' needs the labels told: {words}"
    if rule in ONE_EXAMPLE and samples > 1:
        return (
            f"label rule {rule!r} is for one example, data.samples is {samples}: give attack.labels: counts or {JOINT}"
        )
    try:
        check_head(rule, model)
    except InputError as error:
        return str(error)
    return ""
