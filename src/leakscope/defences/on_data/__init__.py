"""Defences on the data: what a client does to its private images before its network sees them."""

from leakscope.defences.on_data.applying import apply
from leakscope.defences.on_data.contract import DataDefence
from leakscope.defences.on_data.operations import OPERATIONS, Operation, operation
from leakscope.defences.on_data.policy import Policy, parse_policies
from leakscope.defences.on_data.transform import Draws, Transform, picture_keys, run_policy

__all__ = [
    "OPERATIONS", "DataDefence", "Draws", "Operation", "Policy", "Transform", "apply", "operation", "parse_policies",
    "picture_keys", "run_policy",
]  # fmt: skip
