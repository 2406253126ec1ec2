"""Defences in the client's own network: parts of it that never leave the client."""

from leakscope.defences.on_model.polarisation import Equipped, Polarisation, equip

__all__ = ["Equipped", "Polarisation", "equip"]
