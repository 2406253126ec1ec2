"""SPN: rethinking privacy preserving deep learning (Fan et al. 2020)."""
