"""Faster computations of the same numbers: convolutions as products, traced and recorded functions, memory, lanes."""
