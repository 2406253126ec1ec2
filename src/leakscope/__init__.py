"""leakscope measures how much of a client's private training data leaks through the update it shares."""

from __future__ import annotations

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load `leakscope.peek` on first use, so that importing the package costs nothing."""
    if name == "peek":
        from leakscope.peeking import peek

        return peek
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
