"""Defences on the update of ONE trial; a tensor-valued setting gives one strength for each trial."""

from leakscope.defences.on_update.chosen import ChosenNoise
from leakscope.defences.on_update.clip import Clip
from leakscope.defences.on_update.coarse import LowRank, Quantise, Sign
from leakscope.defences.on_update.contract import Defence, Effect, RememberingDefence, Revealed, UpdateDefence, nonzero
from leakscope.defences.on_update.noise import GaussianNoise, LaplaceNoise
from leakscope.defences.on_update.sparse import DeepCompression, RandomMask, Sparsify

__all__ = [
    "ChosenNoise", "Clip", "DeepCompression", "Defence", "Effect", "GaussianNoise", "LaplaceNoise", "LowRank",
    "Quantise", "RandomMask", "RememberingDefence", "Revealed", "Sign", "Sparsify", "UpdateDefence", "nonzero",
]  # fmt: skip
