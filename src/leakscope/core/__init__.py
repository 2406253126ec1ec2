"""What every room shares: values, named-tensor trees, seeds, errors, lookup, pairing."""
