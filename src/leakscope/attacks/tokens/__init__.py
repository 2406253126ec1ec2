"""Attacks on networks over token numbers that optimise embeddings: TAG and LAMP."""
