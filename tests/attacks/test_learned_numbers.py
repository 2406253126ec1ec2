"""What an attack learns beside the pictures is handed back: its last value, and its course where the mismatch is traced."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.conftest import world
from tests.attacks.test_surrogate import ends, small
from torch.testing import assert_close

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import dlg, ig_update, sme
from leakscope.attacks.simulate import ALPHA

DOUBLE = Execution(dtype="float64", form="native")


def test_alpha_is_handed_back_with_its_course() -> None:
    w, how = small(), sme(iterations=9, alpha=0.3)
    made = how.run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    assert set(made.learned) == set(made.courses) == {ALPHA}
    assert_close(made.learned[ALPHA], ends(how, w)[ALPHA])
    course = made.courses[ALPHA]
    assert course.shape == made.trace.shape
    assert course[:, 0].tolist() == pytest.approx([0.3, 0.3])
    assert_close(course[:, -1], made.learned[ALPHA].float())
    assert (course.diff(dim=1).abs() > 0).all()


def test_the_course_is_alpha_at_the_very_iterations_of_the_trace() -> None:
    w = small()
    whole = sme(iterations=9, decay=False).run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    for last in (1, 4, 7):
        part = sme(iterations=last, decay=False).run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
        slot = whole.trace_at[0].tolist().index(last)
        assert_close(whole.courses[ALPHA][:, slot], part.learned[ALPHA].float())


def test_of_restarts_the_best_one_tells_its_alpha() -> None:
    w, how = small(), sme(iterations=5, restarts=3)
    made = how.run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    lanes = ends(how, w)
    for trial in range(2):
        place = (lanes["guess"][3 * trial : 3 * trial + 3] * 0.25 + 0.4 - made.inputs[trial]).abs().flatten(1).amax(1)
        assert float(place.min()) < 1e-9
        assert float(made.learned[ALPHA][trial]) == pytest.approx(float(lanes[ALPHA][3 * trial + int(place.argmin())]))


def test_a_trial_that_ends_early_has_no_course_after_its_end() -> None:
    w = small()
    whole = sme(iterations=9).run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    limit = 1.0001 * float(whole.trace[0, 4])
    early = sme(iterations=9, threshold=limit).run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    assert int(early.iterations[0]) <= 4 < 9
    assert torch.equal(early.courses[ALPHA].isnan(), early.trace_at < 0)


def test_an_attack_without_such_an_unknown_learns_nothing() -> None:
    w, gradients = small(), world(2)
    for how, own in ((ig_update(iterations=2), w), (dlg(iterations=1), gradients)):
        made = how.run(own.model, own.observation, own.knowledge, own.seeds, DOUBLE)
        assert made.learned == made.courses == {}, how.name
