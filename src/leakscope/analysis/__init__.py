"""What the papers compute about updates and attacks: planes of gradients, the line between weights, bounds, characteristics."""
