"""The tables and figures of papers as experiments: what is printed, the scenarios that measure it, both side by side."""
