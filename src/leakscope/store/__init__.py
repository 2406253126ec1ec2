"""The run directory: records, reconstructions, plans; written by one, read by many."""
