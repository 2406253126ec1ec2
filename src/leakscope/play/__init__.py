"""From a client to scores: `expose` the client, `attack` the exposure, `judge` the reconstruction."""

from leakscope.play.attacking import AttackResult, attack, judge, reconstruct
from leakscope.play.demonstration import Demonstration, NoiseResult, Speed, sweep_noise
from leakscope.play.exposure import Exposure, expose, is_defended, join, shared_weights

__all__ = [
    "AttackResult", "Demonstration", "Exposure", "NoiseResult", "Speed", "attack", "expose", "is_defended", "join",
    "judge", "reconstruct", "shared_weights", "sweep_noise",
]  # fmt: skip
