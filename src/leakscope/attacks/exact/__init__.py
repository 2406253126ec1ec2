"""Exact attacks: they solve for the private input without optimisation."""
