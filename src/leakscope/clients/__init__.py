"""The client: local computation on private data, and the Observation that leaves it."""

from leakscope.clients.aggregation import Aggregation
from leakscope.clients.client import Client, client_keys, knowledge_of_defences, attacker_knowledge

__all__ = ["Aggregation", "Client", "attacker_knowledge", "client_keys", "knowledge_of_defences"]
