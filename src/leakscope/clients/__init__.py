"""The client: local computation on private data, and the Observation that leaves it."""

from leakscope.clients.client import Client, told

__all__ = ["Client", "told"]
