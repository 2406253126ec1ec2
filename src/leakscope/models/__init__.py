"""The papers' networks, and any `nn.Module`, as pure functions of their parameters."""

from leakscope.models.activations import ACTIVATIONS
from leakscope.models.adapter import Functional, from_module
from leakscope.models.catalogue import MODELS, build
from leakscope.models.dropout import KeyedDropout
from leakscope.models.initialise import INITS, Given, Init, Torch, Uniform, draw_parameters, torch_bounds
from leakscope.models.vmapping import Lack, Shortfall, find_shortfall, vmap_problem

__all__ = [
    "ACTIVATIONS",
    "INITS",
    "MODELS",
    "Functional",
    "Given",
    "Init",
    "KeyedDropout",
    "Lack",
    "Shortfall",
    "Torch",
    "Uniform",
    "build",
    "draw_parameters",
    "find_shortfall",
    "from_module",
    "torch_bounds",
    "vmap_problem",
]
