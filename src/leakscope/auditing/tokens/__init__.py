"""Audits of networks over token numbers: simulated clients (`audit`), captured updates (`captures`), the static line (`lines`)."""
