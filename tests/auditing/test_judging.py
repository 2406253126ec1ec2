"""Remedies attacked together are judged as if each were attacked alone, by an attacker who knows them and the labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from leakscope.attacks.null import guessed
from leakscope.auditing import Target, advice, remedy_trials, suite
from leakscope.auditing.advice import Control, Hearing, _judged, _tested
from leakscope.auditing.attempts import execution_on
from leakscope.auditing.limits import Budget, Pace, start_budget
from leakscope.auditing.remedies import Finding
from leakscope.auditing.remedy_trials import (
    Candidate,
    Case,
    Met,
    Trial,
    batches,
    control_case,
    fitting,
    make_candidate,
    meet,
    run_together,
    whole_seconds,
)
from leakscope.auditing.target import make_subject
from leakscope.core.errors import InputError
from leakscope.core.progress import SILENT, ProgressEvent, Reporter
from leakscope.core.types import LocalTraining, Outcome
from leakscope.defences import Clip, Defence, GaussianNoise, LaplaceNoise, LowRank, Quantise, RandomMask, Sign, Sparsify
from leakscope.play import AttackResult, judge

pytestmark = pytest.mark.slow

LONG = Budget(3600, 0.0, lambda: 0.0)


def conv_trial(clients: int = 4, examples: int = 1, client: Any = None) -> Trial:
    """Return clients of a small convolutional network on 4 x 4 pictures of three classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.rand(24, 1, 4, 4, generator=generator), torch.arange(24) % 3
    made = Target(model=model, inputs=inputs, labels=labels, client=client, examples=examples)
    return Trial(make_subject(made), clients, 0)


def candidates(trial: Trial, *defences: Defence, attack: str = "ig") -> list[Candidate]:
    return [make_candidate(trial, type(one).__name__, str(n), one, attack) for n, one in enumerate(defences)]


def cases(trial: Trial, *defences: Defence, attack: str = "ig") -> list[Case]:
    return [control_case(trial, attack), *(each.case for each in candidates(trial, *defences, attack=attack))]


def won(case: Case, hits: int | None = None, seconds: float = 0.0) -> AttackResult:
    """Return a run that recovered the first clients exactly."""
    guess = case.exposure.batch.inputs.clone()
    guess[len(guess) if hits is None else hits :] = 0
    return judge(case.exposure.batch, guessed(guess, case.exposure.batch.labels), name=case.entry.name, seconds=seconds)


# -- one batch


def test_a_batch_gives_every_remedy_the_bits_it_gets_alone() -> None:
    noises = cases(conv_trial(), GaussianNoise(0.01), LaplaceNoise(0.3), Clip(0.1))
    masks = cases(conv_trial(), Sparsify(0.5), Sparsify(0.9))[1:]
    for several in (noises, masks):
        assert batches(several) == [list(range(len(several)))]
        together = run_together(several, 6)
        for case, run in zip(several, together, strict=True):
            alone = case.entry.make(6).run(
                case.exposure.model,
                case.exposure.observation,
                case.exposure.informed or case.exposure.knowledge,
                list(case.exposure.seeds),
                execution_on(torch.device("cpu")),
            )
            assert torch.equal(run.reconstruction.inputs, alone.inputs)  # facts left out were of no use


def test_only_what_is_compared_the_same_way_shares_a_batch() -> None:
    several = (
        GaussianNoise(0.1),
        Clip(0.1),
        LowRank(1),
        Sparsify(0.9),
        RandomMask(0.5),
        Sign(),
        Quantise(4),
        Quantise(2),
    )
    assert batches(cases(conv_trial(), *several)) == [[0, 1, 2, 3], [4, 5], [6], [7, 8]]  # ig: a mask is a mask
    lengths = batches(cases(conv_trial(), *several, attack="cpl"))
    assert sorted(number for numbers in lengths for number in numbers) == list(range(9))
    assert [0, 3] in lengths  # cpl compares lengths: a clip and noise change how
    assert not any({1, 2} <= set(numbers) for numbers in lengths)
    configured = conv_trial()
    subject = configured.subject
    guarded = configured._replace(subject=replace(subject, client=replace(subject.client, defences=(Sparsify(0.5),))))
    assert batches(cases(guarded, GaussianNoise(0.1), Clip(0.1))) == [[0, 1, 2]]
    # alone, sparsification also says that what was not sent was smaller: of use to who compares lengths
    by_length = batches(cases(guarded, GaussianNoise(0.1), Clip(0.1), attack="cpl"))
    assert not any({0, 1} <= set(numbers) for numbers in by_length)


def test_a_pace_is_that_of_the_later_half_and_chunks_add_up() -> None:
    times = iter([0.0, 50.0, 60.0, 70.0, 71.0, 72.0, 76.0])
    pace = Pace(lambda: next(times))
    assert pace.seconds is None
    for iteration in (0, 10, 15, 20, 0, 1, 2):
        pace(iteration)
    assert pace.seconds == pytest.approx(2.0 + 4.0)


def test_a_batch_that_runs_past_its_end_is_given_up() -> None:
    over = Budget(1.0, 0.0, lambda: 1.2)
    assert meet(cases(conv_trial(), Clip(0.1)), 2, over, SILENT).runs == {}


def test_one_remedy_that_cannot_be_attacked_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(several: list[Case], iterations: int, pace: Pace) -> list[AttackResult]:
        if any("Clip" in case.words for case in several):
            raise InputError("cannot be run")
        return run_together(several, iterations, pace)

    monkeypatch.setattr(remedy_trials, "run_together", refuse)
    met = meet(cases(conv_trial(), GaussianNoise(0.1), Clip(0.1)), 2, LONG, SILENT)
    assert set(met.runs) == {0, 1}
    assert met.failed == {2: "cannot be run"}


# -- how many there is time for


def test_as_many_as_there_is_time_for_from_the_first() -> None:
    several = cases(conv_trial(), GaussianNoise(0.1), Clip(0.1), Sign())
    runs = {number: ending(won(case, seconds=1.0), Outcome.EXHAUSTED) for number, case in enumerate(several)}
    met = Met(10, runs, {}, [([0, 1, 2], 0.3), ([3], 0.1)])
    assert whole_seconds({0, 1, 2}, met, 100) == pytest.approx(30)
    assert whole_seconds({3}, met, 100) == pytest.approx(10)
    assert whole_seconds({0}, met, 100) < whole_seconds({0, 1}, met, 100) < 30
    assert fitting([3, 1, 2], met, 100, 40.1, control=True) == [3, 1, 2]
    assert fitting([3, 1, 2], met, 100, 39.0, control=True) == [3, 1]
    assert fitting([3, 1, 2], met, 100, 9.0, control=True) == []
    assert fitting([3, 1, 2], met, 100, 10.1, control=False) == [3]
    stalled = {number: ending(run, Outcome.STALLED) for number, run in runs.items()}
    ended = replace(met, runs=stalled)  # no trial was cut off: with more iterations it takes no longer
    assert whole_seconds({0, 1, 2, 3}, ended, 100) == pytest.approx(4)


def ending(run: AttackResult, outcome: Outcome) -> AttackResult:
    """Return the run with every trial ended in this way."""
    ends = torch.full_like(run.reconstruction.outcome, int(outcome))
    return replace(run, reconstruction=replace(run.reconstruction, outcome=ends))


# -- what is found


def control_of(trial: Trial, iterations: int, most: int, *, enough: bool = True) -> Control:
    return Control("ig", won(control_case(trial, "ig")), iterations, most, enough)


def test_only_the_whole_attack_shows_that_a_remedy_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 60, "sme": 4})
    trial = conv_trial()
    (clip,) = candidates(trial, Clip(0.01))
    (short,) = run_together([clip.case], 1)
    brief = _tested(clip, short, control_of(trial, 1, 60), None)
    assert (brief.recovered, brief.finding, brief.confirmed) == (0.0, Finding.SHORT, "")
    assert brief.met.startswith("ig that knows")
    assert "1 of 60" in brief.met
    assert _tested(clip, short, control_of(trial, 60, 60), None).finding is Finding.HELPS
    weak = _tested(clip, won(clip.case), control_of(trial, 1, 60, enough=False), None)
    assert weak.finding is Finding.SHORT  # a control that recovers too little says nothing of anything


def test_a_remedy_that_no_attacker_here_knows_is_not_said_to_help() -> None:
    trial = conv_trial()
    sketch, noise = candidates(trial, LowRank(1), GaussianNoise(10.0))
    control = control_of(trial, 300, 300)
    blind = _tested(sketch, won(sketch.case, 0), control, None)
    assert blind.finding is Finding.BLIND
    assert "knows it" not in blind.met
    assert _tested(noise, won(noise.case, 0), control, None).finding is Finding.HELPS


def test_remedies_meet_the_attacker_who_knows_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise InputError("cannot be told")

    monkeypatch.setattr(suite, "aware", refuse)
    with pytest.raises(InputError, match="no cpl"):
        candidates(conv_trial(), Clip(0.01), attack="cpl")


def test_what_hides_labels_alone_is_no_remedy() -> None:
    trial = conv_trial(examples=4, client=LocalTraining(epochs=1, batch_size=4, rate=0.1))
    several = cases(trial, Clip(0.002), RandomMask(0.3), Sign())
    for case in several:
        (run,) = run_together([case], 2)
        made = run.reconstruction.labels.sort(1).values
        assert torch.equal(made, case.exposure.batch.labels.sort(1).values)
    control, clipped = run_together(several[:2], 40)
    torch.testing.assert_close(
        clipped.summary.means["psnr"].value, control.summary.means["psnr"].value, rtol=0, atol=0.5
    )


def test_what_is_left_of_the_time_goes_to_the_whole_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PUBLISHED", dict.fromkeys(suite.PUBLISHED, 1) | {"cpl": 1, "ig": 60, "sme": 4})
    monkeypatch.setattr(advice, "BRIEF", 12)
    trial = conv_trial()
    some = candidates(trial, Clip(0.01), GaussianNoise(10.0))
    said: list[ProgressEvent] = []
    hearing = Hearing(control_case(trial, "ig"), 1.0, start_budget(10), some, Reporter(said.append))
    control, found, late = _judged(hearing, "no course")
    assert control is not None
    assert (control.whole, control.enough, late) == (True, True, [])
    assert [remedy.finding for remedy in found] == [Finding.USELESS, Finding.HELPS]
    assert all("60 of 60" in remedy.met for remedy in found)
    assert [event.message.split(",")[1] for event in said] == [" 5 iterations", " 60 iterations"]
    assert [(event.phase, event.done, event.total) for event in said] == [("remedies", 0, 3)] * 2
    monkeypatch.setattr(advice, "fitting", lambda *_, **__: [])
    control, found, _ = _judged(hearing, "no course")
    assert control is not None
    assert not control.whole
    assert {remedy.finding for remedy in found} == {Finding.SHORT}
