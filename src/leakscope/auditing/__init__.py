"""The audit: a fixed suite of attacks on a user's model, client and data, a grade, and advice on defences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy import load_lazily

if TYPE_CHECKING:
    from leakscope.auditing.capture_audit import audit_captures as audit_captures
    from leakscope.auditing.static.inspection import Inspection as Inspection, inspect as inspect
    from leakscope.auditing.result import Audit as Audit
    from leakscope.auditing.target import Target as Target, UntestedError as UntestedError
    from leakscope.auditing.target_audit import audit as audit, audit_target as audit_target
    from leakscope.auditing.verdict import COUNTED as COUNTED, RULES as RULES, parse_gate as parse_gate
else:
    load_lazily(__name__)
