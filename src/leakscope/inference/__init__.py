"""Attacks that infer a fact instead of a picture: membership, tracing, properties."""
