"""Other frameworks, plugged in from above; each behind its extra and imported only where it is used."""
