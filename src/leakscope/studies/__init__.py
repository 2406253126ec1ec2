"""Complete studies: the demo, the benchmark, the privacy frontier, and characteristics of runs."""
