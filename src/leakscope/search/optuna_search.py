"""Optuna's multi-objective search over the same policies: privacy down, accuracy up (extra 'search').

A resumed search repeats the sequence of ask and tell (`replay`): NSGA-II ignores trials that are only added to a study.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from leakscope.core.errors import InputError
from leakscope.defences.on_data import OPERATIONS, Policy
from leakscope.search.candidates import Candidate

PLACES = ("first", "second", "third")
LENGTH = "length"
ASKS_A_POLICY = 50  # tries per policy before a sampler that repeats itself is abandoned


class OptunaSearch:
    """Asks Optuna for policies and reports their scores to it."""

    def __init__(self, seed: int, *, shortest: int = 3, longest: int = 3, sampler: str = "nsga2") -> None:
        """Create a study; `sampler` is nsga2 or tpe."""
        try:
            optuna: Any = import_module("optuna")
        except ImportError:
            raise InputError("method optuna needs Optuna: pip install 'leakscope[search]'") from None
        makers = {"nsga2": optuna.samplers.NSGAIISampler, "tpe": optuna.samplers.TPESampler}
        if sampler not in makers:
            raise InputError(f"sampler must be one of {', '.join(makers)}, got {sampler!r}")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna
        self.shortest, self.longest = shortest, longest
        self.study: Any = optuna.create_study(directions=["minimize", "maximize"], sampler=makers[sampler](seed=seed))
        self.asked: dict[str, object] = {}

    def ask(self, number: int, known: Sequence[Candidate] = ()) -> list[str]:
        """Return up to `number` new policies; scores of policies already known are reported at once."""
        scores = {each.policy: each for each in known}
        fresh: list[str] = []
        for _ in range(ASKS_A_POLICY * number):
            if len(fresh) == number:
                break
            trial = self.study.ask()
            policy = self._policy(trial)
            if policy in scores:
                self.study.tell(trial, [scores[policy].privacy, scores[policy].accuracy])
            elif policy in self.asked:
                self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            else:
                self.asked[policy] = trial
                fresh.append(policy)
        return fresh

    def replay(self, scored: Sequence[Candidate], known: Sequence[Candidate]) -> None:
        """Restore the study to its state after a group of an earlier session, given the candidates `known` before it."""
        self.ask(len(scored), known)
        self.tell(scored)
        for trial in self.asked.values():  # another version of Optuna may ask for other policies: discard them
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        self.asked.clear()

    def tell(self, scored: Sequence[Candidate]) -> None:
        """Report the scores of policies, whether asked for or not."""
        for each in scored:
            trial = self.asked.pop(each.policy, None)
            if trial is not None:
                self.study.tell(trial, [each.privacy, each.accuracy])
            else:
                self.study.add_trial(self._earlier(each))

    def _policy(self, trial: Any) -> str:
        length = self.longest
        if self.shortest != self.longest:
            length = trial.suggest_int(LENGTH, self.shortest, self.longest)
        indices = [trial.suggest_categorical(PLACES[i], list(range(len(OPERATIONS)))) for i in range(length)]
        return str(Policy(tuple(int(index) for index in indices)))

    def _earlier(self, each: Candidate) -> object:
        indices = [int(part) for part in each.policy.split("-")]
        kinds = self.optuna.distributions
        spread = kinds.CategoricalDistribution(list(range(len(OPERATIONS))))
        values: dict[str, int] = {PLACES[i]: index for i, index in enumerate(indices)}
        spreads: dict[str, object] = dict.fromkeys(values, spread)
        if self.shortest != self.longest:
            values[LENGTH] = len(indices)
            spreads[LENGTH] = kinds.IntDistribution(self.shortest, self.longest)
        return self.optuna.trial.create_trial(
            params=values, distributions=spreads, values=[each.privacy, each.accuracy]
        )
