"""Defences on the update of ONE trial; a tensor among the settings is a per-trial strength."""

from leakscope.defences.on_update.chosen import ChosenNoise
from leakscope.defences.on_update.clip import Clip
from leakscope.defences.on_update.coarse import LowRank, Quantise, Sign
from leakscope.defences.on_update.contract import Defence, RememberingDefence, UpdateDefence
from leakscope.defences.on_update.noise import GaussianNoise, LaplaceNoise
from leakscope.defences.on_update.sparse import DeepCompression, RandomMask, Sparsify

__all__ = [
    "ChosenNoise",
    "Clip",
    "DeepCompression",
    "Defence",
    "GaussianNoise",
    "LaplaceNoise",
    "LowRank",
    "Quantise",
    "RandomMask",
    "RememberingDefence",
    "Sign",
    "Sparsify",
    "UpdateDefence",
]
