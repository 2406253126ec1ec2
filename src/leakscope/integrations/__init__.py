"""Integrations with other frameworks, each behind its extra and imported only when used."""
