"""The audit: a fixed suite of attacks on a user's own model, client and data, a grade, and what would help."""

from leakscope.auditing.capture_audit import audit_captures
from leakscope.auditing.result import Audit
from leakscope.auditing.target import Target, UntestedError
from leakscope.auditing.target_audit import audit, audit_target
from leakscope.auditing.verdict import COUNTED, RULES, parse_gate

__all__ = [
    "COUNTED",
    "RULES",
    "Audit",
    "Target",
    "UntestedError",
    "audit",
    "audit_captures",
    "audit_target",
    "parse_gate",
]
