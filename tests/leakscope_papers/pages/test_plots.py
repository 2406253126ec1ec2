"""Plots of the papers: every number is drawn once and where it belongs, print stands beside it, the page stays whole."""

from __future__ import annotations

import html
import itertools
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.metrics.interval import Estimate, estimate_mean
from leakscope_papers.characteristics.characteristic import place
from leakscope_papers.comparing import Column, Measured, compare
from leakscope_papers.items import Item, read_item
from leakscope_papers.measures import NONE, Value
from leakscope_papers.pages.page import render_papers
from leakscope_papers.pages.plot_axes import WIDTH
from leakscope_papers.pages.plot_drawing import PlotDrawing, draw, undrawn
from leakscope_papers.pages.plots import Plotted, apart, plotted
from leakscope_papers.plots import Plot
from leakscope_papers.programs.rows import Curve
from leakscope_papers.results import Result

UNAWARE, AWARE = Column("", "does not know"), Column("", "knows the defence", judged=False)


def value(number: float, half: float = 0.1) -> Value:
    return Value(Estimate(number, number - half, number + half, 20, 20))


def cell(column: Column, values: dict[str, Value], **where: object) -> Measured:
    return Measured(where, column, 20, values, cell=repr(where))


def result(item: Item, cells: list[Measured]) -> Result:
    return Result(item, "small", {}, (), tuple(cells), compare(item, cells), (), {})


def characteristic() -> Result:
    rows = [(0.5, 0.2, 0.3, 1.4), (0.1, 3.0, 0.5, 0.9), (0.01, 400.0, 0.7, 0.1)]
    common = {"data": "cifar10", "model": "dlnet", "attack": "all three", "batch": 1}
    cells = [
        cell(
            column,
            {"ratio": value(ratio), "accuracy": value(accuracy), "rmse": value(rmse), "membership": value(0.2)},
            **common,
            defence=defence,
            strength=strength,
        )
        for column in (UNAWARE, AWARE)
        for defence in ("dp", "spn <b>")
        for strength, ratio, accuracy, rmse in rows
    ]
    return result(read_item("spn-figure-5"), cells)


def printed_table(plot: Plot) -> Result:
    """Return CPL's table 8 with one measured cell for each printed place of LFW, and this plot."""
    item = read_item("cpl-table-8")
    wheres = {repr(row.where): row.where for row in item.printed.rows if row.where["data"] == "lfw_face"}
    columns = [Column(reading.label, item.attackers[0].label) for reading in item.readings]
    cells = [cell(column, {"mse": value(0.5)}, **where) for where in wheres.values() for column in columns]
    found = result(item, cells)
    own = Item(name=item.name, about="", parts=item.parts, scales=item.scales, readings=item.readings, plots=(plot,))
    return Result(own, "small", {}, (), found.cells, found.comparison, (), {})


def points_of(made: Plotted) -> list[tuple[str, str, object]]:
    return [(p.title, s.name, point.x) for p in made.panels for s in p.series for point in s.points]


def test_a_characteristic_has_a_panel_for_each_defence_and_attacker_and_all_of_its_points() -> None:
    made = plotted(characteristic())[0]
    assert [panel.title for panel in made.panels] == [
        f"defence {defence}, attacker {attacker}"
        for attacker in ("does not know", "knows the defence")
        for defence in ("dp", "spn <b>")
    ]
    for panel in made.panels:
        assert [(s.name, s.right, len(s.points)) for s in panel.series] == [
            ("accuracy", False, 3), ("rmse", True, 3), ("membership", True, 3),
        ]  # fmt: skip
        assert [point.x for point in panel.series[0].points] == [400.0, 3.0, 0.2]  # along the strength, 0.01 first


def test_points_regions_and_bars_stand_where_the_numbers_say() -> None:
    drawing = draw(plotted(characteristic())[0])
    high = place(400.0) + 0.3
    across = [
        drawing.frame.first + place(r) / high * (drawing.frame.last - drawing.frame.first) for r in (400.0, 3.0, 0.2)
    ]
    accuracy = drawing.panels[0].series[0]
    spots = [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([\d.]+ [\d.]+)", accuracy.path)]
    assert [x for x, _ in spots] == pytest.approx(across, abs=0.06)
    upward = [drawing.frame.floor - a * (drawing.frame.floor - drawing.frame.top) for a in (0.7, 0.5, 0.3)]
    assert [y for _, y in spots] == pytest.approx(upward, abs=0.06)
    bar = re.match(r"M([\d.]+) ([\d.]+)V([\d.]+)", accuracy.bars)
    assert bar is not None
    ends = [drawing.frame.floor - a * (drawing.frame.floor - drawing.frame.top) for a in (0.6, 0.8)]
    assert [float(n) for n in bar.groups()[1:]] == pytest.approx(ends, abs=0.06)
    green, white, red = drawing.shades
    assert [shade.name for shade in drawing.shades] == ["green", "white", "red"]
    assert white.x - drawing.frame.first == pytest.approx(green.width, abs=0.11)
    assert white.x == pytest.approx(
        drawing.frame.first + math.log10(2) / high * (drawing.frame.last - drawing.frame.first), abs=0.06
    )
    assert red.x == pytest.approx(
        drawing.frame.first + math.log10(11) / high * (drawing.frame.last - drawing.frame.first), abs=0.06
    )
    assert red.x + red.width == pytest.approx(drawing.frame.last, abs=0.11)


@given(
    st.lists(
        st.tuples(*(st.integers(0, 2) for _ in range(3)), st.sampled_from([UNAWARE, AWARE])), unique=True, max_size=20
    )
)
def test_every_cell_is_drawn_once_and_no_line_has_two_points_at_one_place(
    wheres: list[tuple[int, int, int, Column]],
) -> None:
    plot = Plot(title="t", x="batch", y=("asr_content",), lines=("start",))
    cells = [cell(c, {"asr_content": value(0.5)}, batch=b, start=s, rate=r) for b, s, r, c in wheres]
    item = Item(name="cpl-figure-4", about="", parts=(), scales={}, plots=(plot,))
    made = plotted(Result(item, "small", {}, (), tuple(cells), compare(item, []), (), {}))[0]
    drawn = points_of(made)
    assert len(drawn) == len(set(drawn)) == len(cells)


def test_an_axis_that_follows_from_the_others_makes_no_panels() -> None:
    plot = Plot(title="t", x="epochs", y=("least_share",), lines=("batch",))
    places = [{"epochs": e, "batch": b, "local_steps": e * 50 // b, "data": "x"} for e in (10, 50) for b in (10, 50)]
    assert apart(plot, places) == ()
    assert apart(plot, [*places, {**places[0], "data": "y"}]) == ("data",)


def test_printed_numbers_stand_open_beside_ours_in_the_judged_column_alone() -> None:
    plot = Plot(title="t", x="sigma", y=("mse",), lines=("defence",))
    found = printed_table(plot)
    made = plotted(found)[0]
    told = {
        (line.where.get("defence"), line.where.get("sigma"), line.printed["mse"].value)
        for line in found.comparison.lines
        if line.measured and "mse" in line.printed and "sigma" in line.where
    }
    drawn = {(s.name, x, v) for panel in made.panels for s in panel.series for x, v in s.published}
    assert drawn == {(f"defence {defence}", sigma, number) for defence, sigma, number in told if number is not None}
    assert drawn
    assert all("data lfw_face" in panel.title for panel in made.panels)  # of CIFAR-100 nothing is measured
    assert draw(made).published
    assert not any(s.published for made in plotted(characteristic()) for p in made.panels for s in p.series)


def test_words_below_have_equal_room_and_no_line_joins_them() -> None:
    plot = Plot(title="t", x="start", y=("asr_content", "asr_label"))
    words = ["random", "patterned", "a very long word for a start", "dark"]
    cells = [cell(UNAWARE, {"asr_content": value(0.5), "asr_label": value(0.9)}, start=word) for word in words]
    item = Item(name="cpl-figure-4", about="", parts=(), scales={}, plots=(plot,))
    drawing = draw(plotted(Result(item, "small", {}, (), tuple(cells), compare(item, []), (), {}))[0])
    assert [text for _, text in drawing.across] == words
    places = [x for x, _ in drawing.across]
    assert [b - a for a, b in itertools.pairwise(places)] == pytest.approx([73.5] * 3, abs=0.11)
    assert drawing.turned
    assert drawing.frame.height > drawing.frame.width / 2
    assert all(not series.path and len(series.marks) == 4 for series in drawing.panels[0].series)


def test_a_curve_is_the_mean_over_clients_with_its_band() -> None:
    import torch

    y = ((0.1, 0.6, 0.2), (0.3, 0.8, None))
    plot = Plot(title="Cosine", curve="cosine along the line", lines=("epochs",), across="alpha")
    one = Measured({"epochs": 10}, UNAWARE, 2, {}, curves={"cosine along the line": Curve((0.0, 0.5, 1.0), y)})
    item = Item(name="sme-figure-4", about="", parts=(), scales={}, plots=(plot, Plot(title="Lost", curve="lost")))
    found = Result(item, "small", {}, (), (one,), compare(item, []), (), {})
    made, lost = plotted(found)
    points = made.panels[0].series[0].points
    both = estimate_mean(torch.tensor([[0.6], [0.8]]), torch.ones(2, 1, dtype=torch.bool))
    assert [p.x for p in points] == [0.0, 0.5, 1.0]
    assert [p.value.value for p in points] == pytest.approx([0.2, 0.7, 0.2])
    assert both.high > 1  # cut to what a cosine can be
    assert (points[1].value.low, points[1].value.high) == pytest.approx((both.low, 1.0))
    drawing = draw(made)
    assert drawing.panels[0].series[0].band.endswith("Z")
    assert drawing.names[0] == "alpha"
    words = drawing.panels[0].words
    assert re.findall(r"n = (\d) at ([\d.]+)", words) == [("2", "0"), ("1", "1.00")]
    assert words.endswith("0.700 at 0.500")
    assert undrawn(made) == ""
    assert "no curve" in undrawn(lost)


def test_cells_without_a_number_across_are_counted() -> None:
    found = characteristic()
    broken = Measured(found.cells[0].where, UNAWARE, 20, {**found.cells[0].values, "ratio": Value(NONE)})
    made = plotted(result(found.item, [broken, *found.cells[1:]]))[0]
    assert len(points_of(made)) == 3 * 11
    assert made.without == 1
    assert "1 cells" in undrawn(made)


def test_the_page_holds_the_drawings_with_words_for_them_and_escapes_what_it_was_given() -> None:
    page = render_papers([characteristic()], command="c")
    labels = [
        html.unescape(label)
        for label in re.findall(r'<svg viewBox="0 0 360 [^>]*role="img" aria-label="([^"]*)"', page)
    ]
    assert len(labels) == 4
    assert all("accuracy from" in label and "rmse from" in label for label in labels)
    assert "spn &lt;b&gt;" in page
    assert "spn <b>" not in page
    assert "<script" not in page
    assert "4 and 8: not drawn" in page
    numbers = [float(n) for path in re.findall(r'class="spot" d="M([\d.]+) ([\d.]+)', page) for n in path]
    assert all(0 <= n <= WIDTH for n in numbers)
    assert all(
        text in page for text in ("log10(||B|| / ||E|| + 1)", "right axis", "left axis", "red: the perturbation")
    )


def plotting(plot: Plot, cells: list[Measured]) -> Plotted:
    item = Item(name="cpl-figure-4", about="", parts=(), scales={}, plots=(plot,))
    return plotted(Result(item, "small", {}, (), tuple(cells), compare(item, []), (), {}))[0]


def spots_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def height_of(drawing: PlotDrawing, value: float, top: float) -> float:
    return drawing.frame.floor - value / top * (drawing.frame.floor - drawing.frame.top)


def test_chance_is_level_from_edge_to_edge_on_the_right_axis_of_a_characteristic() -> None:
    found = characteristic()
    cells = [replace(c, values={**c.values, "tracing": value(0.8), "tracing_chance": value(0.9)}) for c in found.cells]
    drawing = draw(plotted(result(found.item, cells))[0])
    top = float(drawing.right[-1][1])
    for panel in drawing.panels:
        assert panel.chance is not None
        (first, y), (last, same) = spots_of(panel.chance.path)
        assert (first, last, y) == (drawing.frame.first, drawing.frame.last, same)
        assert y == pytest.approx(height_of(drawing, 0.9, top), abs=0.06)
        assert panel.words.endswith("; chance 0.900")
    page = render_papers([result(found.item, cells)], command="c")
    assert page.count(">chance</text>") == page.count('class="chance" d="M50') == 4
    assert "guessing <small>right" in page
    assert "chance</text>" not in render_papers([found], command="c")


def test_chance_follows_the_number_of_participants_and_widens_the_axis() -> None:
    plot = Plot(title="t", x="owners", y=("tracing",), lines=("strength",), chance="tracing_chance")
    cells = [
        cell(UNAWARE, {"tracing": value(0.1, 0.01), "tracing_chance": value(1 - 1 / n)}, owners=n, strength=s)
        for s in (0.1, 0.5)
        for n in (20, 2, 5)
    ]
    drawing = draw(plotting(plot, cells))
    (panel,) = drawing.panels
    assert panel.chance is not None
    assert [text for _, text in drawing.across] == ["2", "5", "20"]
    across, up = zip(*spots_of(panel.chance.path), strict=True)
    assert across == tuple(x for x, _ in drawing.across)
    top = float(drawing.left[-1][1])
    assert top >= 0.95
    assert up == pytest.approx([height_of(drawing, 1 - 1 / n, top) for n in (2, 5, 20)], abs=0.06)
    assert panel.words.endswith("; chance from 0.500 to 0.950")


def test_bars_stand_on_zero_side_by_side_and_chance_crosses_its_own_alone() -> None:
    plot = Plot(title="t", x="attack", y=("cap",), lines=("defence",), bars=True, chance="cap_chance")
    caps = {("rec", "dp"): 0.02, ("rec", "spn"): 0.9, ("tracing", "dp"): 0.4, ("tracing", "spn"): 0.5}
    guessed = {"dp": 0.45, "spn": 0.6}
    cells = [
        cell(
            UNAWARE,
            {"cap": value(v, 0.01), **({"cap_chance": value(guessed[d])} if a == "tracing" else {})},
            attack=a,
            defence=d,
        )
        for (a, d), v in caps.items()
    ]
    drawing = draw(plotting(plot, cells))
    (panel,) = drawing.panels
    assert drawing.left[0][1] == "0"
    top = float(drawing.left[-1][1])
    outline = r"M([\d.]+) ([\d.]+)V([\d.]+)h([\d.]+)V([\d.]+)Z"
    columns = [tuple(map(float, c)) for s in panel.series for c in re.findall(outline, s.columns)]
    heights = [caps[a, d] for d in ("dp", "spn") for a in ("rec", "tracing")]
    assert [c[2] for c in columns] == pytest.approx([height_of(drawing, v, top) for v in heights], abs=0.06)
    assert all(c[1] == c[4] == drawing.frame.floor for c in columns)
    edges = sorted((c[0], c[0] + c[3]) for c in columns)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(edges))  # none covers another
    assert panel.chance is not None
    dashes = spots_of(panel.chance.path)
    assert [y for _, y in dashes] == pytest.approx([height_of(drawing, v, top) for v in (0.45, 0.6)], abs=0.06)
    assert all(x > edges[1][1] for x, _ in dashes)  # of tracing alone
    assert drawing.note == "Whiskers are 95 % intervals."


def test_numbers_below_bars_have_a_room_each() -> None:
    plot = Plot(title="t", x="batch", y=("cap",), bars=True)
    drawing = draw(plotting(plot, [cell(UNAWARE, {"cap": value(0.5)}, batch=n) for n in (1, 8, 100)]))
    assert [text for _, text in drawing.across] == ["1", "8", "100"]
    assert [b - a for (a, _), (b, _) in itertools.pairwise(drawing.across)] == pytest.approx([98, 98], abs=0.11)


def test_a_plot_without_bars_has_no_columns() -> None:
    assert not any(s.columns for p in draw(plotted(characteristic())[0]).panels for s in p.series)
