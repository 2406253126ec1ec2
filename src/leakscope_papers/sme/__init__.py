"""SME: surrogate model extension (Zhu, Yao and Blaschko 2023)."""
