"""Random search: draws, rejection, selection, and a real attack as the score."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import ig
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.defences.on_data import Transform, parse_policies
from leakscope.metrics.image import psnr
from leakscope.models import build, draw_parameters
from leakscope.models.initialise import Given
from leakscope.search.candidates import Candidate, draw_policies, select, share_worse_on_both
from leakscope.search.privacy_score import attack_scores

scores = st.floats(-200, 200)
candidates = st.lists(
    st.builds(Candidate, st.integers(0, 10**6).map(str), st.floats(0, 1), scores),
    max_size=30,
    unique_by=lambda c: c.policy,
)


@given(st.integers(1, 300), st.integers(0, 2**31), st.integers(2, 3), st.integers(0, 1))
def test_policies_are_different_valid_and_of_the_length_asked(number: int, seed: int, longest: int, less: int) -> None:
    drawn = draw_policies(number, seed, shortest=longest - less, longest=longest)
    assert len(set(drawn)) == len(drawn) == number
    for text in drawn:
        (policy,) = parse_policies(text)
        assert longest - less <= len(policy.indices) <= longest


def test_every_operation_is_drawn_about_equally_often() -> None:
    counts = torch.zeros(50)
    for text in draw_policies(5000, 0):
        for index in text.split("-"):
            counts[int(index)] += 1
    assert counts.min() > 220
    assert counts.max() < 380


@given(candidates, st.one_of(st.none(), scores), st.integers(1, 6))
def test_the_kept_are_the_most_private_of_those_that_pass(
    many: list[Candidate], threshold: float | None, keep: int
) -> None:
    chosen = select(many, threshold=threshold, keep=keep)
    passed = [each for each in many if threshold is None or each.accuracy >= threshold]
    assert chosen.rejected == len(many) - len(passed)
    assert len(chosen.kept) == min(keep, len(passed))
    assert set(chosen.kept) <= set(passed)
    others = [each.privacy for each in passed if each not in chosen.kept]
    assert all(each.privacy <= min(others, default=math.inf) for each in chosen.kept)


def test_a_hybrid_is_a_policy_that_can_be_read() -> None:
    many = [Candidate("3-1-7", 0.2, -80), Candidate("43-18-18", 0.3, -70), Candidate("0", 0.1, -90)]
    chosen = select(many, threshold=-85, keep=2)
    assert chosen.hybrid == "3-1-7+43-18-18"
    assert len(Transform(chosen.hybrid).policies) == 2
    assert select([], threshold=None, keep=1).hybrid == "none"


def test_the_share_worse_on_both_counts_only_both() -> None:
    none = Candidate("none", 0.3, -80)
    many = [Candidate("a", 0.4, -90), Candidate("b", 0.4, -70), Candidate("c", 0.2, -90), Candidate("d", 0.5, -81)]
    assert share_worse_on_both(many, none) == 0.5
    assert math.isnan(share_worse_on_both([], none))


def test_bad_numbers_are_refused() -> None:
    for number in (0, -1, 10**9):
        with pytest.raises(InputError, match="random policies"):
            draw_policies(number, 0)
    with pytest.raises(InputError, match="lengths must satisfy"):
        draw_policies(1, 0, shortest=2, longest=1)
    with pytest.raises(InputError, match=r"keep .*least 1"):
        select([], threshold=None, keep=0)


def test_attack_scores_are_those_of_each_policy_attacked_alone() -> None:
    data, model = load("fashion_mnist"), build("lenet_dlg", (1, 28, 28), 10, {"width": 3})
    x, y = data.pictures("test", range(2)), data.labels("test", range(2))
    hows, execution = [Transform("none"), Transform("3-1-7")], Execution(form="native")
    made = attack_scores(model, x, y, hows, scaling=data.statistics, seed=3, iterations=3, execution=execution)
    for number, how in enumerate(hows):
        client = Client(scaling=data.statistics, on_data=how)
        batch = make_batch(x[:, None], y[:, None], classes=10)
        seen = client.observe(model, draw_parameters(model, Given(), random.key([3, 4])), batch, [3, 4])
        alone = ig(iterations=3).run(
            model, seen, attacker_knowledge(model, client, batch, labels=True), [3, 4], execution
        )
        slow = psnr(batch.inputs, alone.inputs.clamp(0, 1)).mean()
        torch.testing.assert_close(made[number], slow, rtol=1e-4, atol=1e-4)
