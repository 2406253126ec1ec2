"""Charts as the coordinates of SVG drawings; `charts.html` among the templates writes them out.

Here are the scales, the shapes and the panels of curves that every page uses. `charts.characteristic` and `charts.policies`
draw the two kinds of chart that one page alone has.
"""

from leakscope.report.charts.panels import Drawing, Line, Panel, Stroke, draw_panel, draw_panels
from leakscope.report.charts.scales import SHARE, Scale, fit, likeness_scale, linear_scale, measure_scale, widen
from leakscope.report.charts.shapes import (
    COLOURS,
    Frame,
    Mark,
    Spot,
    Tick,
    band,
    column,
    estimate_text,
    has_interval,
    legend_marker,
    marker,
    path,
    tick_text,
    value_text,
    whisker,
)

__all__ = [
    "COLOURS",
    "SHARE",
    "Drawing",
    "Frame",
    "Line",
    "Mark",
    "Panel",
    "Scale",
    "Spot",
    "Stroke",
    "Tick",
    "band",
    "column",
    "draw_panel",
    "draw_panels",
    "estimate_text",
    "fit",
    "has_interval",
    "legend_marker",
    "likeness_scale",
    "linear_scale",
    "marker",
    "measure_scale",
    "path",
    "tick_text",
    "value_text",
    "whisker",
    "widen",
]
