"""Charts as coordinates of SVG drawings, rendered by the template `charts.html`."""

from leakscope.report.charts.panels import Drawing as Drawing, Line as Line, Panel as Panel, Stroke as Stroke
from leakscope.report.charts.panels import draw_panel as draw_panel, draw_panels as draw_panels
from leakscope.report.charts.scales import SHARE as SHARE, Scale as Scale, fit as fit, interval_ends as interval_ends
from leakscope.report.charts.scales import measure_scale as measure_scale, widen as widen
from leakscope.report.charts.shapes import COLOURS as COLOURS, Frame as Frame, Mark as Mark, Spot as Spot, Tick as Tick
from leakscope.report.charts.shapes import band as band, estimate_text as estimate_text, legend_marker as legend_marker
from leakscope.report.charts.shapes import marker as marker, path as path, tick_text as tick_text
from leakscope.report.charts.shapes import value_text as value_text
