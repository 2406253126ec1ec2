"""Whole runs: the demo, the benchmark, and the published experiments."""
