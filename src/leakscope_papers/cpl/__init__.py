"""CPL: a framework for evaluating gradient leakage attacks (Wei et al. 2020)."""
