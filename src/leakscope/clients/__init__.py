"""The client: local computation on private data, and the Observation that leaves it."""

from leakscope.clients.client import Client, tell_defences, told

__all__ = ["Client", "tell_defences", "told"]
