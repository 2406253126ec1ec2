"""leakscope measures how much of a client's private training data leaks through the update it shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.experiments.audit import audit as audit
    from leakscope.peeking import peek as peek

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load `leakscope.peek` and `leakscope.audit` on first use, so that importing the package costs nothing."""
    if name == "peek":
        from leakscope.peeking import peek

        return peek
    if name == "audit":
        from leakscope.experiments.audit import audit

        return audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
