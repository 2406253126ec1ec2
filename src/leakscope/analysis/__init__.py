"""Analyses from the papers: planes of gradients, the line between weights, bounds, characteristics."""

from leakscope.analysis.characteristic import (
    Characteristic as Characteristic, Point as Point, Region as Region, Rule as Rule, bias_ratio as bias_ratio,
    measured as measured, region as region,
)  # fmt: skip
from leakscope.analysis.convergence import image_curve as image_curve, image_curves as image_curves
from leakscope.analysis.inferring import Guess as Guess, Inferred as Inferred, Sure as Sure, infer as infer
from leakscope.analysis.linear_system import SystemReport as SystemReport, inspect_layer as inspect_layer
