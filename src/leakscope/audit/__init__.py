"""The audit: a fixed suite of attacks on a user's own model, client and data, a grade, and what would help."""

from leakscope.audit.capture_audit import audit_captures
from leakscope.audit.result import Audit
from leakscope.audit.target import Target, UntestedError
from leakscope.audit.target_audit import audit, audit_target
from leakscope.audit.verdict import COUNTED, RULES, parse_gate

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
