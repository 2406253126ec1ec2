"""The way from a client to scores: what the server sees, the attacks on it, the null baselines beside them."""
