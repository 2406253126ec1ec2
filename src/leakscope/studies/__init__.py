"""Whole studies on top of the instrument: the demo, the benchmark, the privacy frontier, characteristics of runs."""
