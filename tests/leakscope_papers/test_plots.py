"""Plots in the files of items: mistakes are named by file, field and value; the items that show curves have them, and what they draw."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope_papers import items
from leakscope_papers.characteristics.characteristic import Point
from leakscope_papers.items import item_files, read_item
from leakscope_papers.measures import value_of
from leakscope_papers.plots import Plot, check_plot
from leakscope_papers.programs import find_program
from leakscope_papers.programs.rows import keeping, read_rows
from leakscope_papers.runs import row_cells
from leakscope_papers.scales import settings_at
from leakscope_papers.spn import curves as spn

AXES, MEASURES = {"batch", "sigma", "defence"}, ("rmse", "ratio", "accuracy")
PLOTTED = (
    *(f"cpl-figure-{n}" for n in (4, 6, 8, 11)),
    *(f"mixing-figure-{n}" for n in (1, 2)),
    *(f"sme-figure-{n}" for n in (3, 4, 7, 8, 9, 10)),
    *(f"spn-figure-{n}" for n in (1, 4, 5, 7, 26, 27, 28, 29)),
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "x and y"),
        ({"x": "batch"}, "x and y"),
        ({"x": "bach", "y": ("rmse",)}, r"\.x .*got 'bach'"),
        ({"x": "batch", "y": ("mse",)}, r"\.y .*got 'mse'"),
        ({"x": "batch", "y": ("rmse",), "second_axis": ("batch",)}, r"\.second_axis must name"),
        ({"x": "batch", "y": ("rmse",), "lines": ("rmse",)}, r"\.lines .*got 'rmse'"),
        ({"x": "batch", "y": ("rmse",), "where": {"data": "mnist"}}, r"\.where must name"),
        ({"x": "batch", "y": ("rmse",), "lines": ("batch",)}, r"\.lines .*'batch'"),
        ({"x": "batch", "y": ("rmse",), "along": "sigma"}, r"\.along .*measure"),
        ({"x": "ratio", "y": ("rmse",)}, r"\.along .*got ''"),
        ({"x": "batch", "y": ("rmse",), "regions": "ratio"}, r"\.regions .*'ratio'"),
        ({"x": "ratio", "y": ("rmse",), "along": "sigma", "regions": "green"}, r"\.regions can only"),
        ({"curve": "share along the steps", "y": ("rmse",)}, "no x, y"),
        ({"curve": "share along the steps", "chance": "rmse"}, "no .*chance or bars"),
        ({"curve": "share along the steps", "bars": True}, "no .*chance or bars"),
        ({"x": "batch", "y": ("rmse",), "chance": "batch"}, r"\.chance .*got 'batch'"),
        ({"x": "ratio", "y": ("rmse",), "along": "sigma", "bars": True}, r"\.bars .*'ratio'"),
        ({"x": "batch", "y": ("rmse",), "second_axis": ("accuracy",), "bars": True}, r"\.bars .*second_axis"),
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
        {"x": "defence", "y": ("rmse",), "chance": "accuracy", "bars": True},
        {"curve": "share along the steps", "lines": ("batch",), "where": {"attacker": "knows"}},
    ],
)
def test_what_is_right_passes(given: dict[str, object]) -> None:
    check_plot(Plot(title="t", **given), "a.yaml: plots.0", AXES, MEASURES)


def test_the_file_of_an_item_is_checked_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = item_files()["spn-figure-27"].read_text("utf-8").replace("x: alpha2", "x: alpha3")
    (tmp_path / "figure-27.yaml").write_text(text, "utf-8")
    monkeypatch.setattr(items, "paper_files", lambda kind: {"spn-figure-27": tmp_path / "figure-27.yaml"})
    with pytest.raises(InputError, match=r"figure-27.yaml: plots.0.x .*'alpha3'"):
        read_item.__wrapped__("spn-figure-27")


@pytest.mark.parametrize("name", PLOTTED)
def test_the_figures_that_are_curves_have_plots(name: str) -> None:
    assert read_item(name).plots


def test_every_plot_of_tracing_draws_chance() -> None:
    chances = {"tracing": "tracing_chance", "tracing_reconstructed": "tracing_chance"}
    for name in (name for name in item_files() if name.startswith("spn-")):
        for plot in read_item(name).plots:
            for measure in {*plot.y, *plot.second_axis} & chances.keys():
                assert plot.chance == chances[measure], (name, plot.title)
    assert any(plot.bars and plot.chance == "cap_chance" for plot in read_item("spn-figure-1").plots)


def test_the_characteristics_draw_products_and_tracing_by_participants_from_the_rows(tmp_path: Path) -> None:
    item = read_item("spn-figure-5")
    home = read_item("spn-table-8")
    settings = {**settings_at(home, home.parts[0], "smoke"), "attackers": ["unaware"]}
    settings["curves"] = [{"defence": "dp", "strengths": [0.1]}]
    with keeping(tmp_path, settings, {}) as keep:
        find_program("spn_curves")(settings, keep, lambda _: None, "cpu")
    cells = row_cells(item, item.parts[0], read_rows(tmp_path))
    products = {name for plot in item.plots for name in plot.y if name.startswith(spn.PRODUCT)}
    assert products == {spn.PRODUCT + name for name in ("rmse", "membership", "tracing")}
    whole = [cell for cell in cells if cell.where["attack"] == "all three"]
    assert len(whole) == 1
    for cell in whole:
        for name in products:
            accuracy, distance = (cell.values[n].estimate.value for n in ("accuracy", name.removeprefix(spn.PRODUCT)))
            assert cell.values[name].estimate.value == pytest.approx(accuracy * distance)
    drawn = next(plot for plot in item.plots if plot.x == "owners")
    chances = {(cell.where["owners"], cell.values[drawn.chance].estimate.value) for cell in cells}
    assert chances == {(2, 0.5), (4, 0.75)}  # the participants of the characteristic are among those of the plot


def test_the_interval_of_a_product_has_the_errors_of_the_accuracy_and_of_the_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(500, generator=generator) < 0.6
    numbers = {name: torch.rand(200, generator=generator).tolist() for name in spn.DISTANCES}
    made = spn._trained(right, spn.Measured(numbers, {}))
    accuracy = float(right.double().mean())
    for name in spn.DISTANCES:
        product, distance = value_of("", made[spn.PRODUCT + name]).estimate, value_of("", numbers[name]).estimate
        both = Point(0.1, 1.0, accuracy, distance, tests=500)
        assert product.value == pytest.approx(both.product)
        assert (product.high - product.low) / 2 == pytest.approx(both.half, rel=0.15)
        assert (
            both.half > 1.15 * accuracy * (distance.high - distance.low) / 2
        )  # so that the distance alone fails above
