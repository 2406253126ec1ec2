"""Analyses: image errors along an attack, linear systems of dense layers, settings inferred from an update."""

from leakscope.analysis.convergence import image_curve as image_curve, image_curves as image_curves
from leakscope.analysis.inferring import Guess as Guess, Inferred as Inferred, Sure as Sure, infer as infer
from leakscope.analysis.linear_system import SystemReport as SystemReport, inspect_layer as inspect_layer
