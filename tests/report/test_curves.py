"""Curves hold the numbers of the tables; scales place them in order; drawings stay inside their frame."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.record import Cell
from leakscope.metrics.interval import Estimate
from leakscope.report import sheet_of, tabulate
from leakscope.report.charts import Line, Panel, Scale, draw_panel, draw_panels, fit, widen
from leakscope.report.sections import panels_of, split_lines
from leakscope.store import Run

SIGMA = "defences.0.sigma"
POSITIVE = st.floats(1e-9, 1e9)


def test_lines_are_the_rows_of_the_table_and_baselines_are_levels(
    make_run: Callable[..., Run], make_cells: Callable[..., list[Cell]]
) -> None:
    cells = make_cells()
    sheet = sheet_of(make_run(cells))
    attacked = [cell for cell in cells if not cell.baseline]
    content, mse, ssim = panels_of(sheet, SIGMA, attacked, lambda name: name.upper())
    assert [panel.title for panel in (content, mse, ssim)] == ["Content recovered", "Mean MSE", "Mean SSIM"]
    assert (content.axis, content.share, mse.share) == (SIGMA.upper(), True, False)
    rows = tabulate(sheet, (SIGMA,), attacked).rows
    for line in content.lines:
        assert line.at == (0.0, 0.01, 0.1)
        assert line.values == tuple(row.content for row in rows if row.attack == line.name)
    assert mse.levels == tuple((row.attack, row.mse) for row in rows if row.baseline)
    assert content.names() == ["cpl", "dlg", "class mean", "nearest public"]


def test_lines_split_by_other_axes_while_they_stay_readable() -> None:
    def make(attacks: int, tellings: int, models: int) -> list[Cell]:
        return [
            Cell(id=f"{a}{t}{m}{s}", settings={}, axes={"sigma": s, "attack": a, "told": t, "model": m})
            for a in range(attacks)
            for t in range(tellings)
            for m in range(models)
            for s in (0.0, 1.0)
        ]

    assert split_lines(make(2, 2, 1), "sigma") == ("told",)
    assert split_lines(make(2, 3, 2), "sigma") == ("told",)
    assert split_lines(make(2, 4, 2), "sigma") == ("model",)
    assert split_lines(make(7, 2, 2), "sigma") == ()


def test_a_line_is_named_after_its_attack_and_its_other_axes(make_run: Callable[..., Run]) -> None:
    cells = [
        Cell(id=f"{t}{s}", settings={"attack": {"name": "dlg"}}, axes={"sigma": s, "told": t})
        for t in (True, False)
        for s in (0.0, 1.0)
    ]
    drawn = panels_of(sheet_of(make_run(cells)), "sigma", cells, lambda name: name)
    assert [line.name for line in drawn[0].lines] == ["dlg, told yes", "dlg, told no"]


@given(st.lists(POSITIVE | st.just(0.0), min_size=1, max_size=8), st.booleans())
def test_a_scale_keeps_the_order_and_the_frame(values: list[float], wide: bool) -> None:
    scale = fit(values)
    if wide:
        scale = widen(scale)
    places = [scale.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= 1
    ticks = [place for place, _ in scale.ticks()]
    assert ticks == sorted(ticks)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in ticks)
    assert len(ticks) <= 8


def test_decades_make_a_scale_logarithmic_and_zero_has_a_place_of_its_own() -> None:
    scale = fit([0.0, 1e-4, 1e-2, 1e-1])
    assert scale.log
    assert scale.zero
    assert scale.place(0.0) == 0 < scale.place(1e-4) < scale.place(1e-2)
    assert [text for _, text in scale.ticks()] == ["0", "10⁻⁴", "10⁻³", "0.01", "0.1"]
    assert not fit([1.0, 2.0, 8.0]).log
    assert not fit([-1.0, 1000.0]).log
    assert fit([3.0, 3.0]).place(3.0) == 0.5
    assert fit([math.nan]) == Scale(0.0, 1.0)


@given(
    st.lists(st.tuples(POSITIVE, st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_a_drawing_stays_inside_its_frame(points: list[tuple[float, float, float]], share: bool, bounded: bool) -> None:
    points = sorted({at: (at, v, w) for at, v, w in points}.values())
    values = tuple(Estimate(v, v - w, v + w, 4, 4) for _, v, w in points)
    line = Line("a", tuple(at for at, _, _ in points), values)
    panel = Panel("t", "x", share, bounded, (line,), (("level", values[0]),))
    (drawing,), legend = draw_panels([panel])
    frame = drawing.frame
    for stroke in drawing.strokes:
        outlines = [stroke.path, *(band for band, _ in stroke.bands)]
        for x, y in (spot for outline in outlines for spot in re.findall(r"[ML]([-\d.e]+) ([-\d.e]+)", outline)):
            assert frame.first - 0.1 <= float(x) <= frame.last + 0.1
            assert frame.top - 0.1 <= float(y) <= frame.floor + 0.1
    assert [stroke.name for stroke in legend] == ["a", "level"]


def test_a_point_says_its_number_its_interval_and_its_n(figures: Callable[[str], list[str]]) -> None:
    line = Line("cpl", (0.0, 0.1), (Estimate(0.5, 0.25, 0.75, 8, 8), Estimate(0.0, 0.0, 0.3, 8, 8)))
    drawing = draw_panel(Panel("Content recovered", "sigma", True, True, (line,)), ["cpl"])
    first = drawing.strokes[0].marks[0].words
    assert first.startswith("cpl, 0: ")
    assert figures(first) == ["0", "50", "25", "75", "8"]
    assert figures(drawing.words)[:6] == ["50", "25", "75", "8", "0", "0"]


def test_an_interval_without_a_lower_end_is_marked_on_a_log_scale_only() -> None:
    def bands(values: tuple[Estimate, ...]) -> list[bool]:
        panel = Panel("Mean MSE", "sigma", False, False, (Line("cpl", (1.0, 2.0), values),))
        return [is_open for _, is_open in draw_panel(panel, ["cpl"]).strokes[0].bands]

    wide = Estimate(1e-4, -1.0, 1.0, 4, 4)
    assert bands((wide, Estimate(1.0, 0.5, 1.5, 4, 4))) == [False, True]
    assert bands((Estimate(0.9, -1.0, 1.0, 4, 4), Estimate(1.0, 0.5, 1.5, 4, 4))) == [False, False]


def test_colours_go_by_name_across_panels() -> None:
    point = Estimate(0.5, 0.4, 0.6, 4, 4)
    first = Panel("a", "x", True, True, (Line("one", (0.0,), (point,)), Line("two", (0.0,), (point,))))
    second = Panel("b", "x", True, True, (Line("two", (0.0,), (point,)),))
    drawings, _ = draw_panels([first, second])
    assert drawings[0].strokes[1].colour == drawings[1].strokes[0].colour == 1


@pytest.mark.parametrize("n", [0, 1])
def test_a_panel_of_one_point_is_drawn_without_a_band(n: int) -> None:
    line = Line("a", (0.0,) * n, (Estimate(0.5, 0.4, 0.6, 4, 4),) * n)
    drawing = draw_panel(Panel("a", "x", True, True, (line,)), ["a"]) if n else None
    assert drawing is None or drawing.strokes[0].bands == ()
