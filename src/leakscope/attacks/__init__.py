"""Attacks: pure pieces of one trial, one batched engine, and recipes that put them together."""
