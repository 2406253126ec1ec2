"""Dishonest servers: manipulations of the weights that a client gets, each with its own readout of the update."""
