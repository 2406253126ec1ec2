"""The client: local computation on private data, and the Observation that leaves it."""

from leakscope.clients.client import Client, client_keys, tell_defences, told

__all__ = ["Client", "client_keys", "tell_defences", "told"]
