"""Defences: what a client does to its update before sharing it. Each is one frozen dataclass."""

from collections.abc import Callable

from leakscope.defences.on_update import (
    ChosenNoise,
    Clip,
    DeepCompression,
    Defence,
    Effect,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    RememberingDefence,
    Revealed,
    Sign,
    Sparsify,
    UpdateDefence,
    nonzero,
)
from leakscope.defences.strengths import Unit, tried

DEFENCES: dict[str, Callable[..., Defence]] = {
    "gaussian_noise": GaussianNoise,
    "laplace_noise": LaplaceNoise,
    "clip": Clip,
    "sparsify": Sparsify,
    "deep_compression": DeepCompression,
    "random_mask": RandomMask,
    "chosen_noise": ChosenNoise,
    "sign": Sign,
    "quantise": Quantise,
    "low_rank": LowRank,
}

__all__ = [
    "DEFENCES",
    "ChosenNoise",
    "Clip",
    "DeepCompression",
    "Defence",
    "Effect",
    "GaussianNoise",
    "LaplaceNoise",
    "LowRank",
    "Quantise",
    "RandomMask",
    "RememberingDefence",
    "Revealed",
    "Sign",
    "Sparsify",
    "Unit",
    "UpdateDefence",
    "nonzero",
    "tried",
]
