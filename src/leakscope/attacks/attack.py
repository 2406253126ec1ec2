"""An attack as data (components, rules, stopping), and how it turns an Observation into a Reconstruction."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.attacks.engine.end_measures import measure_ends
from leakscope.attacks.engine.plan import DEFAULT, DTYPES, Execution
from leakscope.attacks.engine.runner import run_problem
from leakscope.attacks.engine.state import Finished, Moves, Problem, Stop, single_numbers
from leakscope.attacks.label_rules.head import LabelRule
from leakscope.attacks.labels import JOINT, LABEL_RULES, chosen_rule
from leakscope.attacks.objectives import Match, compares_lengths
from leakscope.attacks.optimisers import LBFGS, Optimiser, Rule
from leakscope.attacks.priors import GUESS, TotalVariation, with_tv_weight
from leakscope.attacks.simulate import LABEL, LocalSteps, OneGradient, OnTheLine, simulator_kinds, targets_of
from leakscope.attacks.starts import Patterned, Start
from leakscope.attacks.view import Components, Facts, Objective, Prior, Simulator
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.registry import lookup
from leakscope.core.tree import Tree, flat_names, lift, map_tensors, take, to
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Seeds, Shares, to_gradient
from leakscope.learning.local import draw_order
from leakscope.learning.losses import UserLoss
from leakscope.learning.target_start import begin_targets

Extra = Callable[[Tensor, Knowledge], Tensor]
SEEN = "seen"  # optional result of `finish`: the guess as the client's network saw it


@runtime_checkable
class Fitted(Protocol):
    """The start of an unknown whose shape depends on the network, such as a dummy layer."""

    def for_model(self, model: Model) -> Extra:
        """Return the start for this network."""
        ...


class Attack(Protocol):
    """Anything that turns an Observation and Knowledge into a Reconstruction."""

    @property
    def name(self) -> str:
        """Return the name results are listed under."""
        ...

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the reconstruction of every trial."""
        ...


@dataclass(frozen=True, slots=True)
class Matching:
    """Optimise unknowns until the update they would cause matches the observed one (DLG, CPL, IG, SME).

    `labels` is a rule of `LABEL_RULES`, 'joint' (optimise label logits with the guess) or 'auto' (the known labels, else CPL's
    rule for one example and `by_residual` for more). `extras` are further unknowns: name -> start of ONE trial. `rules` say how each
    unknown moves, the guess included; the default is without constraint. `measures` are evaluated once, at the last guess of the
    best restart, and returned with the learned values; nothing is optimised or selected by them. `tv_weights` are tried beside
    restarts as the weight of total variation; as among restarts, the smallest mismatch to the update is kept, priors left out.
    `moves` change the unknowns between iterations where no gradient leads (the order of tokens).
    """

    name: str
    simulate: Simulator = field(default_factory=OneGradient)
    objective: Objective = field(default_factory=Match)
    priors: tuple[Prior, ...] = ()
    start: Start = field(default_factory=Patterned)
    labels: str = "auto"
    optimiser: Optimiser = field(default_factory=LBFGS)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    extras: Mapping[str, Extra | Fitted] = field(default_factory=dict)
    stop: Stop = field(default_factory=Stop)
    restarts: int = 1
    finish: Callable[[Tree, Knowledge], Tree] | None = None
    measures: Mapping[str, Objective] = field(default_factory=dict)
    tv_weights: tuple[float, ...] = ()
    moves: Moves | None = None

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise InputError(f"Matching.restarts must be at least 1, got {self.restarts}")
        if self.labels not in ("auto", JOINT):
            lookup(LABEL_RULES, self.labels, "label rule")
        if self.tv_weights and not any(isinstance(prior, TotalVariation) for prior in self.priors):
            raise InputError("Matching.tv_weights needs the prior TotalVariation")
        taken = sorted({GUESS, LABEL, *self.extras} & set(self.measures))
        if taken:
            raise InputError(f"Matching.measures must not have the name of an unknown, got {taken[0]!r}")

    @property
    def attempts(self) -> int:
        """Return the lanes of a trial: restarts times weights of total variation."""
        return self.restarts * max(len(self.tv_weights), 1)

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the reconstruction of every trial; `seeds` has one number per trial."""
        model = model.in_mode(knowledge.norm)
        problem, restarts = self.prepare(model, observation, knowledge, seeds, execution)
        stamp = self._stamp(model, problem) if execution.directory else ""  # slow: hashes every weight
        finished = run_problem(model, problem, self.stop, execution, stamp, self.most_evaluations())
        best = best_restart(finished, restarts)
        ended = take(finished, best)
        measured = measure_ends(model, problem.facts, ended, best, self.measures, execution) if self.measures else {}
        if self.tv_weights:
            measured |= {"tv_weight": torch.tensor(self.tv_weights)[best % restarts // self.restarts]}
        return self._reconstruction(problem, ended, best, measured)

    def prepare(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> tuple[Problem, int]:
        """Return the problem for the engine, with attempts as neighbouring lanes, and the number of attempts."""
        check_observation(model, observation, knowledge, seeds)
        device, dtype = torch.device(execution.device), DTYPES[execution.dtype]
        observation, knowledge = to((observation, knowledge), device=device, dtype=dtype)
        keys = random.key(list(seeds), device=device)
        knowledge = self._with_labels(model, observation, knowledge, keys)
        knowledge = self._with_order(knowledge, keys)
        observation = self._comparable(observation, knowledge)
        lanes = torch.arange(len(seeds), device=device).repeat_interleave(self.attempts)
        number = torch.arange(self.restarts, device=device).repeat(len(lanes) // self.restarts)
        pieces = Components(self.simulate, self.objective, self.priors)
        settings = to((pieces, dict(self.rules), self.optimiser, self.start, self.moves), device=device, dtype=dtype)
        each = (Facts(observation, knowledge, settings[0], keys), *settings[1:])
        facts, rules, optimiser, start, moves = each if self.attempts == 1 else take(each, lanes)
        if self.tv_weights:
            weights = torch.tensor(self.tv_weights, device=device, dtype=dtype).repeat_interleave(self.restarts)
            pieces = replace(
                facts.components, priors=with_tv_weight(facts.components.priors, weights.repeat(len(seeds)))
            )
            facts = replace(facts, components=pieces)
        unknowns = self._unknowns(model, facts, start, random.fold(random.fold(facts.key, "start"), number), dtype)
        if self.labels == JOINT and isinstance(knowledge.loss, UserLoss):
            facts = self._with_targets(model, facts, knowledge.loss, unknowns)
        rules = {name: rules.get(name, Rule()) for name in unknowns}
        return Problem(unknowns, facts, optimiser, rules, moves), self.attempts

    def _with_order(self, knowledge: Knowledge, keys: Tensor) -> Knowledge:
        """Return Knowledge with a drawn order of the examples, where local steps are simulated and the client's order is unknown.

        The draw happens outside the evaluation because inductor (torch 2.13) gets such draws wrong.
        """
        local = knowledge.local
        if local is None or knowledge.order is not None or LocalSteps not in simulator_kinds(self.simulate):
            return knowledge
        present = knowledge.present
        if present is None:
            present = torch.ones(len(keys), knowledge.samples, dtype=torch.bool, device=keys.device)
        return replace(knowledge, order=draw_order(local, knowledge.samples, keys, present))

    def _comparable(self, observation: Observation, knowledge: Knowledge) -> Observation:
        """Return the observation as the quantity this attack simulates: a weight change becomes a mean gradient if `local` is known."""
        kinds = simulator_kinds(self.simulate)
        if observation.shares is Shares.GRADIENT and kinds & {OnTheLine, LocalSteps}:
            raise InputError(
                f"attack {self.name!r} needs weights after local training (client.local); this client shared a gradient: use ig"
            )
        local = knowledge.local
        if observation.shares is Shares.GRADIENT or kinds & {OnTheLine, LocalSteps}:
            return observation
        if local is None:
            if compares_lengths(self.objective):
                raise InputError(
                    f"{self.name} compares lengths, but without the rate (Knowledge.local) the length of a weight change "
                    "does not give the gradient's: pass the local training, or use an attack that compares directions (ig, sme)"
                )
            return observation
        if local.optimiser == "adam" and compares_lengths(self.objective):
            raise InputError(
                f"{self.name} compares lengths, but after Adam the length of an update does not give the gradient's: use "
                "an attack that compares directions (ig_update, sme), or simulate the steps (dlfa)"
            )
        return to_gradient(observation, local.length(sizes_of(knowledge, observation.trials)))

    def _with_labels(self, model: Model, observation: Observation, knowledge: Knowledge, keys: Tensor) -> Knowledge:
        rule = chosen_rule(self.labels, knowledge.samples, known=knowledge.labels is not None)
        if rule == JOINT:
            return replace(knowledge, labels=None)
        read: LabelRule = LABEL_RULES[rule]
        return replace(knowledge, labels=read(model, observation, knowledge, keys))

    def _with_targets(self, model: Model, facts: Facts, loss: UserLoss, unknowns: Tree) -> Facts:
        """Return facts with the loss that reads the targets, after adding these to `unknowns`, or with the targets if they are read."""
        guess, knowledge, lengths = unknowns[GUESS], facts.knowledge, compares_lengths(self.objective)
        first = begin_targets(model, loss, facts.observation, guess, knowledge.present, facts.key, lengths=lengths)
        if first.free is not None:
            unknowns[LABEL] = first.free
        return replace(facts, knowledge=replace(knowledge, loss=first.loss, labels=first.known))

    def _unknowns(self, model: Model, facts: Facts, start: Start, keys: Tensor, dtype: torch.dtype) -> Tree:
        unknowns = {GUESS: lift(lambda s, k, w: s(k, w))(start, keys, facts.knowledge).to(keys.device, dtype)}
        if self.labels == JOINT and isinstance(facts.knowledge.loss, str):
            shape = (facts.knowledge.samples, model.classes)
            unknowns[LABEL] = random.normal(random.fold(keys, LABEL), shape, dtype)
        for name, extra in self.extras.items():
            begin = extra.for_model(model) if isinstance(extra, Fitted) else extra
            value = lift(lambda k, w, begin=begin: begin(k, w))(random.fold(keys, name), facts.knowledge)
            unknowns[name] = value.to(keys.device, dtype)
        for name, rule in self.rules.items():
            if name not in unknowns:
                raise InputError(
                    f"Matching.rules names {name!r}, which is not an unknown of this attack: {', '.join(unknowns)}"
                )
            if rule.project is not None:
                unknowns[name] = rule.project(unknowns[name], facts.knowledge)
        return unknowns

    def most_evaluations(self) -> float:
        """Return how many evaluations a trial takes at most."""
        return float(self.stop.iterations * self.optimiser.evaluations)

    def _stamp(self, model: Model, problem: Problem) -> str:
        """Return a fingerprint of everything that determines the result, so that a run is never resumed as another."""
        plain: tuple[object, ...] = (self.name, self.stop, self.labels, self.restarts, problem.rules, problem.optimiser)
        plain += () if problem.moves is None else (problem.moves,)
        known = [getattr(problem.facts.knowledge, field.name) for field in fields(problem.facts.knowledge)]
        seen = (problem.facts.components, known, problem.facts.observation.shares, describe(model))
        digest = hashlib.sha256(readable(map_tensors(lambda t: t.new_zeros(()), (plain, seen))).encode())
        for name, value in flat_names(problem).items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    def _reconstruction(self, problem: Problem, ended: Finished, best: Tensor, measured: Tree) -> Reconstruction:
        knowledge = take(to(problem.facts.knowledge, device="cpu"), best)
        unknowns = self.finish(ended.unknowns, knowledge) if self.finish else ended.unknowns
        rank = len(knowledge.input_shape)

        def picture(x: Tensor) -> Tensor:
            return knowledge.scaling.unscale(x, rank)

        labels, targets = ended.unknowns[LABEL].argmax(-1) if LABEL in ended.unknowns else knowledge.labels, None
        if isinstance(knowledge.loss, UserLoss):
            targets = lift(lambda u, k: targets_of(u, k, k.classes))(ended.unknowns, knowledge)
            labels = torch.zeros(targets.shape[:2], dtype=torch.int64)
        if labels is None:
            raise RuntimeError("an attack must end with labels: known, inferred from the update, or optimised")
        return Reconstruction(
            inputs=picture(unknowns[GUESS]),
            labels=labels,
            start=picture(problem.unknowns[GUESS].cpu()[best]),
            mismatch=ended.mismatch,
            iterations=ended.iteration,
            evaluations=ended.evaluations,
            outcome=ended.outcome,
            trace=ended.trace,
            trace_at=ended.trace_at,
            snapshots=picture(ended.snapshots),
            snapshots_at=ended.snapshots_at,
            seen=picture(unknowns[SEEN]) if SEEN in unknowns else None,
            targets=targets,
            learned={**single_numbers(ended.unknowns), **measured},
            courses=ended.courses,
        )


def describe(model: Model) -> tuple[object, ...]:
    """Return the parts of a network that identify it in text: name, layers, parameter shapes."""
    module = getattr(model.apply, "module", "")
    return (model.name, str(module), [(name, tuple(value.shape)) for name, value in model.parameters.items()])


def readable(value: object) -> str:
    """Return the text of a value without the memory addresses in the repr of functions."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def best_restart(finished: Finished, restarts: int) -> Tensor:
    """Return for each trial the lane of the restart with the smallest mismatch; the private data are never consulted."""
    mismatch = torch.nan_to_num(finished.mismatch, nan=float("inf"))
    mismatch = mismatch.masked_fill(finished.outcome == Outcome.DIVERGED, float("inf")).reshape(-1, restarts)
    first = torch.arange(len(mismatch)) * restarts
    return first + mismatch.argmin(1)


def sizes_of(knowledge: Knowledge, trials: int) -> list[int]:
    """Return the number of examples of each client, as far as the attacker knows."""
    if knowledge.present is None:
        return [knowledge.samples] * trials
    return [int(n) for n in knowledge.present.sum(-1).tolist()]


def check_observation(model: Model, observation: Observation, knowledge: Knowledge, seeds: Sequence[int]) -> None:
    """Raise for input that cannot work: wrong shapes or names, NaN, wrong number of seeds."""
    if tuple(knowledge.input_shape) != tuple(model.input_shape):
        raise InputError(
            f"model {model.name!r} takes inputs {model.input_shape}, Knowledge says {knowledge.input_shape}"
        )
    total = observation.trials
    if len(seeds) != total:
        raise InputError(f"one seed per trial: {total} trials, {len(seeds)} seeds")
    expected = model.shared(model.parameters)
    for number, seen in enumerate(observation.rounds):
        parts = (
            ("before", seen.before, "parameter"),
            ("sent", seen.sent, "parameter"),
            ("buffers", seen.buffers, "buffer"),
            ("buffers_after", seen.buffers_after or {}, "buffer"),
        )
        for part, tree, kind in parts:
            for name, value in tree.items():
                want = (model.parameters if kind == "parameter" else model.buffers).get(name)
                if want is None:
                    raise InputError(f"round {number}: {part} has {name!r}, which is no {kind} of {model.name!r}")
                if tuple(value.shape) != (total, *want.shape):
                    raise InputError(
                        f"round {number}: {part}[{name!r}] must be {(total, *want.shape)}, got {tuple(value.shape)}"
                    )
                if not bool(torch.isfinite(value).all()) and (kind == "parameter" or bool(value.isnan().any())):
                    raise InputError(f"round {number}: {part}[{name!r}] holds NaN or infinity")  # masks are infinite
        for part, names, tree in (
            ("the update lacks", expected, seen.sent),
            ("before lacks", expected, seen.before),
            ("buffers lacks", model.buffers, seen.buffers),
        ):
            if missing := sorted(set(names) - set(tree)):
                raise InputError(f"round {number}: {part} {missing[0]!r} of {model.name!r}")
