"""Rules that read the labels of a batch off the gradient of the last layer; `leakscope.attacks.labels` has their table."""
