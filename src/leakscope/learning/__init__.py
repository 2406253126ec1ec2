"""From weights and a batch to losses, gradients and local training; shared by clients and attacks."""
