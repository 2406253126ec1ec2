"""Sonnets or Alice: a small GPT with low-rank adapters, trained by a Flower federation."""
