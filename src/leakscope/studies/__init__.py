"""Complete studies: the demo, the benchmark and the privacy frontier."""
