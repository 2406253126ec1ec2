"""Shared by all packages: values, named-tensor trees, seeds, errors, lookup, pairing."""
