"""Handwritten digits, learned by a Flower federation."""
