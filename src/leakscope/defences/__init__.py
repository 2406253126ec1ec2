"""Defences: what a client does to its data, its network or its update before sharing it. Each is one frozen dataclass."""

from collections.abc import Callable

from leakscope.defences.on_data import (
    OPERATIONS as OPERATIONS, DataDefence as DataDefence, Draws as Draws, Operation as Operation, Policy as Policy,
    Transform as Transform, apply as apply, operation as operation, parse_policies as parse_policies,
    picture_keys as picture_keys, run_policy as run_policy,
)  # fmt: skip
from leakscope.defences.on_model import Equipped as Equipped, Polarisation as Polarisation, equip as equip
from leakscope.defences.on_update import (
    ChosenNoise as ChosenNoise, Clip as Clip, DeepCompression as DeepCompression, Defence as Defence, Effect as Effect,
    GaussianNoise as GaussianNoise, LaplaceNoise as LaplaceNoise, LowRank as LowRank, Quantise as Quantise,
    RandomMask as RandomMask, RememberingDefence as RememberingDefence, Revealed as Revealed, Sign as Sign,
    Sparsify as Sparsify, UpdateDefence as UpdateDefence, nonzero as nonzero,
)  # fmt: skip
from leakscope.defences.rows import DropRows as DropRows
from leakscope.defences.strengths import Unit as Unit, tried as tried

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
