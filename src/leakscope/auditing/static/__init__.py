"""What updates show before any attack: the facts of a network (`facts`), lines on them, and `inspect` (`inspection`)."""
