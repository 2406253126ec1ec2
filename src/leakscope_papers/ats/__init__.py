"""[Re] Privacy-preserving collaborative learning with automatic transformation search."""
