"""Captures of one client over several rounds: the client counts once.

Exact attacks read all rounds of a client together, and what they recover from single rounds adds up. Of every other attack the best
round counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.attacks.exact.all_rounds import AllRounds
from leakscope.auditing.attack_runs import own_metrics
from leakscope.auditing.suite import ALL_ROUNDS, Entry
from leakscope.core.types import Outcome, Reconstruction
from leakscope.metrics.scoring import arrange
from leakscope.play import AttackResult, Exposure, judge
from leakscope.sweep.chunk_records import with_metrics

ADD_UP = ("analytic", "peeling")  # exact, and able to read several rounds


def with_all_rounds(entries: Sequence[Entry], owners: Tensor) -> list[Entry]:
    """Return the attacks of the suite; those that read several rounds also run on all rounds of a client, if any has several."""
    numbers = tuple(owners.tolist())
    if len(set(numbers)) == len(numbers):
        return list(entries)

    def together(entry: Entry) -> Entry:
        return replace(entry, name=f"{entry.name}{ALL_ROUNDS}", make=lambda most: AllRounds(entry.make(most), numbers))

    return [
        each
        for entry in entries
        for each in ((entry, together(entry)) if entry.name in ADD_UP and not entry.own else (entry,))
    ]


def runs_of_clients(exposure: Exposure, runs: Sequence[AttackResult], owners: Tensor) -> list[AttackResult]:
    """Return the runs on captures as runs on clients; see `best_rounds` and `added_up`."""
    by_name = {run.name: run for run in runs}
    results = []
    for run in runs:
        part = run.select(best_rounds(run.reconstruction, owners))
        single = by_name.get(run.name.removesuffix(ALL_ROUNDS))
        results.append(part if single is None or single is run else added_up(exposure, part, single, owners))
    return results


def added_up(exposure: Exposure, joint: AttackResult, single: AttackResult, owners: Tensor) -> AttackResult:
    """Return the run on all rounds of every client, with the samples that an exact attack recovered from single rounds alone.

    The attacker holds the guesses of every round and of all rounds together. A sample counts once, however many of them are it. Each
    attack chose its guesses without the truth, which here counts the samples among them.
    """
    truth = first_rounds(exposure, owners).batch
    guess, hit = joint.reconstruction, joint.recovered.clone()
    inputs, labels = (arrange(each, joint.scores.pairing) for each in (guess.inputs, guess.labels))
    proved = None if guess.proved is None else guess.proved.gather(1, joint.scores.pairing)
    shown = single.reconstruction
    for capture, owner in enumerate(owners.tolist()):
        order = single.scores.pairing[capture]
        new = single.recovered[capture] & ~hit[owner]
        inputs[owner, new], labels[owner, new] = shown.inputs[capture, order[new]], shown.labels[capture, order[new]]
        if proved is not None and shown.proved is not None:
            proved[owner, new] = shown.proved[capture, order[new]]
        hit[owner] |= new
    if bool((hit == joint.recovered).all()):
        return joint
    whole = replace(guess, inputs=inputs, labels=labels, proved=proved)
    run = judge(truth, whole, name=joint.name, note=joint.note, seconds=joint.seconds)
    return with_metrics(own_metrics(exposure), truth, run)


def first_rounds(exposure: Exposure, owners: Tensor) -> Exposure:
    """Return the exposure of the first capture of every client."""
    first = torch.tensor([int((owners == owner).nonzero()[0]) for owner in range(int(owners.max()) + 1)])
    return exposure.select(first)


def best_rounds(guess: Reconstruction, owners: Tensor) -> Tensor:
    """Return for every client the capture with most certified samples, then the least mismatch; the truth is not consulted."""
    worst = 1e30  # of a diverged attack, yet less than that of another client
    left = relative_mismatch(guess).nan_to_num(worst, worst).masked_fill(guess.outcome == Outcome.DIVERGED, worst)
    own = owners == torch.arange(int(owners.max()) + 1)[:, None]
    if guess.proved is not None:
        proved = torch.where(own, guess.proved.sum(1).to(own.device), -1)
        own &= proved == proved.max(1, keepdim=True).values
    return torch.where(own, left, torch.inf).argmin(1)


def relative_mismatch(guess: Reconstruction) -> Tensor:
    """Return the final over the first mismatch of every trial; attacks without iterations have a relative one."""
    one = guess.trace.shape[1] == 1
    return guess.mismatch if one else guess.mismatch / guess.trace[:, 0].clamp_min(1e-12)
