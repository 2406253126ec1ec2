"""Defences in the client's network: private parts that are never shared."""

from leakscope.defences.on_model.polarisation import Equipped, Polarisation, equip

__all__ = ["Equipped", "Polarisation", "equip"]
