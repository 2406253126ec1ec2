"""The tables and figures of papers as experiments: printed numbers, the scenarios that measure them, and their comparison."""
