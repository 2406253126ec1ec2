"""Batched optimisers: each advances T independent trials at once."""

from leakscope.attacks.optimisers.first_order import SGD, Adagrad, Adam
from leakscope.attacks.optimisers.lbfgs import LBFGS
from leakscope.attacks.optimisers.rules import Exponential, Optimiser, Rule, Steps

OPTIMISERS: dict[str, type[Optimiser]] = {"lbfgs": LBFGS, "adam": Adam, "adagrad": Adagrad, "sgd": SGD}

__all__ = ["LBFGS", "OPTIMISERS", "SGD", "Adagrad", "Adam", "Exponential", "Optimiser", "Rule", "Steps"]
