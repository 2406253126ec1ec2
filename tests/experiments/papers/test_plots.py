"""Plots in the files of items: mistakes are named by file, field and value; the items that show curves have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.core.errors import InputError
from leakscope.experiments.papers import items
from leakscope.experiments.papers.items import item_files, read_item
from leakscope.experiments.papers.plots import Plot, check_plot

AXES, MEASURES = {"batch", "sigma", "defence"}, ("rmse", "ratio", "accuracy")
PLOTTED = (
    *(f"cpl-figure-{n}" for n in (4, 6, 8, 11)),
    *(f"mixing-figure-{n}" for n in (1, 2)),
    *(f"sme-figure-{n}" for n in (3, 4, 7, 8, 9, 10)),
    *(f"spn-figure-{n}" for n in (5, 26, 27, 28)),
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs x and y, or curve"),
        ({"x": "batch"}, "needs x and y, or curve"),
        ({"x": "bach", "y": ("rmse",)}, r"\.x must be an axis or a measure of the item .*got 'bach'"),
        ({"x": "batch", "y": ("mse",)}, r"\.y must name measures of the item .*rmse.*got 'mse'"),
        ({"x": "batch", "y": ("rmse",), "second_axis": ("batch",)}, r"\.second_axis must name measures"),
        ({"x": "batch", "y": ("rmse",), "lines": ("rmse",)}, r"\.lines must name axes of the item .*got 'rmse'"),
        ({"x": "batch", "y": ("rmse",), "where": {"data": "mnist"}}, r"\.where must name axes"),
        ({"x": "batch", "y": ("rmse",), "lines": ("batch",)}, r"\.lines must not name 'batch'"),
        ({"x": "batch", "y": ("rmse",), "along": "sigma"}, r"\.along is for an x that is a measure"),
        ({"x": "ratio", "y": ("rmse",)}, r"\.along must be the axis that the points follow .*got ''"),
        ({"x": "batch", "y": ("rmse",), "regions": "ratio"}, r"\.regions can only be 'ratio', with x: ratio"),
        ({"x": "ratio", "y": ("rmse",), "along": "sigma", "regions": "green"}, r"\.regions can only be"),
        ({"curve": "share along the steps", "y": ("rmse",)}, "kept curve has no x, y"),
    ],
)
def test_a_mistake_in_a_plot_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        check_plot(Plot(title="t", **given), "a.yaml: plots.0", AXES, MEASURES)
    assert str(raised.value).startswith("a.yaml: plots.0")


@pytest.mark.parametrize(
    "given",
    [
        {"x": "batch", "y": ("rmse", "accuracy"), "lines": ("defence", "attacker", "reading")},
        {"x": "ratio", "y": ("accuracy",), "second_axis": ("rmse",), "along": "sigma", "regions": "ratio"},
        {"curve": "share along the steps", "lines": ("batch",), "where": {"attacker": "knows"}},
    ],
)
def test_what_is_right_passes(given: dict[str, object]) -> None:
    check_plot(Plot(title="t", **given), "a.yaml: plots.0", AXES, MEASURES)


def test_the_file_of_an_item_is_checked_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = item_files()["spn-figure-27"].read_text("utf-8").replace("x: alpha2", "x: alpha3")
    (tmp_path / "spn-figure-27.yaml").write_text(text, "utf-8")
    monkeypatch.setattr(items, "ITEMS", tmp_path)
    with pytest.raises(InputError, match=r"spn-figure-27.yaml: plots.0.x must be .*got 'alpha3'"):
        read_item.__wrapped__("spn-figure-27")


@pytest.mark.parametrize("name", PLOTTED)
def test_the_figures_that_are_curves_have_plots(name: str) -> None:
    assert read_item(name).plots
