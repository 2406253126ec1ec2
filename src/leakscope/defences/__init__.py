"""Defences: what a client does to its update before sharing it. Each is one frozen dataclass."""

from leakscope.defences.on_update import GaussianNoise, UpdateDefence

DEFENCES: dict[str, type[UpdateDefence]] = {"gaussian_noise": GaussianNoise}

__all__ = ["DEFENCES", "GaussianNoise", "UpdateDefence"]
