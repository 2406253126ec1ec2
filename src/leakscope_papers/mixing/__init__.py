"""Mixing gradients in neural networks: the supporting information."""
