"""Attacks that infer a fact instead of an image: membership, tracing, properties."""

from leakscope.inference.membership import Membership as Membership, classified as classified, membership as membership
from leakscope.inference.property import (
    PropertyClassifier as PropertyClassifier, PropertyInference as PropertyInference,
    area_under_curve as area_under_curve, fit_property as fit_property, infer_property as infer_property,
)  # fmt: skip
from leakscope.inference.tracing import (
    Tracing as Tracing, by_cluster as by_cluster, nearest as nearest, partition as partition, spread as spread,
    trace as trace, trace_each as trace_each,
)  # fmt: skip
