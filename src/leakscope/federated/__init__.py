"""A federation: partitions, sampling of clients, local training of many at once, aggregation, checkpoints, accuracy."""
