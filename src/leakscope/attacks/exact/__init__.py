"""Exact attacks: they solve for the private input, and optimise nothing."""
