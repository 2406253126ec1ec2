"""The demo and peek: small runs of the real thing, and the page they write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.report.test_attack_page import exposed
from torch import nn

import leakscope
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.null import guessed
from leakscope.attacks.recipes import dlg
from leakscope.core.errors import InputError
from leakscope.core.types import make_batch
from leakscope.data import load
from leakscope.play import Demonstration, judge
from leakscope.play.attacking import without_labels_of
from leakscope.play.demonstration import NOISE_LEVELS
from leakscope.report.attack_page import page_of, results_of
from leakscope.report.page import render
from leakscope.studies.demo import DemoSettings, run_demo

SMALL = DemoSettings(images=3, cpl_steps=12, dlg_steps=2, noise_images=2, noise_steps=8)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    path = tmp_path_factory.mktemp("own") / "me.png"
    Image.effect_mandelbrot((90, 60), (-2, -1.5, 1, 1.5), 50).save(path)
    return path


@pytest.mark.slow
def test_the_demo_shows_an_exact_recovery_first_and_tells_the_whole_story(picture: Path) -> None:
    shown: list[float] = []
    settings = DemoSettings(**{**_fields(SMALL), "image": picture})

    def show(run, batch) -> None:  # type: ignore[no-untyped-def]
        shown.append(float((run.reconstruction.inputs - batch.inputs).abs().max()))

    story = run_demo(settings, shown=show)
    assert shown[0] < 1e-4
    assert story.exposure.batch.trials == 4, "the user's own picture is attacked beside the bundled ones"
    assert story.names[0] == "your picture"
    assert [run.name for run in story.attacks] == ["CPL patterned", "CPL random", "DLG"]
    assert story.attacks[0].summary.content.value >= 0.75
    for run in story.attacks:
        assert run.summary.label is not None
        assert run.summary.label.n == run.summary.samples - 1, "nobody knows the class of the user's own picture"
    assert story.noise is not None
    assert story.noise.sigmas == tuple(NOISE_LEVELS)
    clean, drowned = story.noise.results[0].summary, story.noise.results[-1].summary
    assert clean.means["mse"].value < 0.01 < drowned.means["mse"].value, "the leak dies in noise"
    assert story.speed is not None
    assert story.speed.attacks == 3 * 4 + 8 * 2
    page = render(page_of(story, title="t", explanation="e", knowledge="k", limits="l", command="c"))
    assert "CPL patterned" in page
    assert [run.name for run in story.baselines] == ["class_mean", "prior_only", "nearest_public"]
    assert page.count("without the update") >= 3
    assert len(page) < 3_000_000


def test_an_invented_label_is_neither_right_nor_wrong() -> None:
    """Of four trials the first has a made-up label: rates of labels, in words and on the page, are over the other three."""
    batch = make_batch(torch.rand(4, 1, 1, 4, 4), torch.tensor([[0], [1], [2], [3]]), classes=10)
    guess = guessed(batch.inputs, torch.tensor([[7], [1], [2], [9]]))
    run = judge(batch, guess, name="cpl")
    assert run.summary.label is not None
    assert (run.summary.label.value, run.summary.label.n) == (0.5, 4)
    own = without_labels_of(run, frozenset({0}))
    assert own.summary.label is not None
    assert own.summary.label_set is not None
    assert (own.summary.label.value, own.summary.label.n) == (pytest.approx(2 / 3), 3)
    assert own.summary.label_set.n == 3
    assert own.summary.content == run.summary.content
    assert without_labels_of(run, frozenset(range(4))).summary.label is None
    assert without_labels_of(run, frozenset()) is run
    shown = exposed(batch, (0, 1, 2, 3))
    story = Demonstration(shown, ("your picture",) * 4, (own,), 0.0, unlabelled=frozenset({0}))
    assert results_of(story).sheet.columns["label_correct"].tolist() == [-1, 1, 1, 0]


def _fields(settings: DemoSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def test_impossible_demo_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="one image"):
        DemoSettings(images=0)


def small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(6 * 16, 10))
        for p in net.parameters():
            nn.init.uniform_(p, -0.5, 0.5)
    return net


def test_peek_recovers_a_picture_of_any_module_and_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    digits = load("digits")
    x, y = digits.pictures("test", [3]), torch.as_tensor(digits.labels("test", [3]))
    net = small_net()
    before = {n: p.clone() for n, p in net.named_parameters()}
    seen = leakscope.peek(net, x, y, iterations=30, noise=False)
    assert float((seen.inputs - x).square().mean()) < 0.01
    assert "1 of 1 recovered" in str(seen)
    assert "<iframe" in seen._repr_html_()
    assert seen.write(tmp_path / "peek.html").stat().st_size > 1000
    assert all(torch.equal(before[n], p) for n, p in net.named_parameters())


def test_peek_takes_normalised_inputs_and_another_attack() -> None:
    digits = load("digits")
    x, y = digits.pictures("test", [3, 4]), torch.as_tensor(digits.labels("test", [3, 4]))
    seen = leakscope.peek(
        small_net(),
        (x - 0.5) / 0.25,
        y,
        mean=(0.5,),
        std=(0.25,),
        attack=dlg(iterations=2),
        execution=Execution(form="native"),
        noise=False,
    )
    torch.testing.assert_close(seen.shown.exposure.batch.inputs[0], x, atol=1e-5, rtol=0)


def test_peek_reads_a_dense_network_exactly() -> None:
    digits = load("digits")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))
    x, y = digits.pictures("test", [5]), torch.as_tensor(digits.labels("test", [5]))
    seen = leakscope.peek(net, x, y, iterations=1, noise=False)
    assert seen.shown.exact is not None
    torch.testing.assert_close(seen.shown.exact[0].reconstruction.inputs[0], x, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.rand(2, 1, 8, 8), torch.tensor([1]), "shape N x"),
        (torch.rand(1, 1, 8, 8) * 9, torch.tensor([1]), r"box \[0, 1\]"),
        (torch.rand(1, 1, 8, 8), torch.tensor([10]), "labels .*0..9"),
        (torch.rand(1, 1, 9, 9), torch.tensor([1]), "9, 9"),
        (torch.rand(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), "shape N x"),
    ],
)
def test_peek_says_what_is_wrong_in_one_line(x: torch.Tensor, y: torch.Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        leakscope.peek(small_net(), x, y)
    assert "\n" not in str(caught.value)
