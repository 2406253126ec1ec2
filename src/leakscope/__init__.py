"""leakscope measures how much of a client's private training data leaks through the update it shares."""

from __future__ import annotations

__version__ = "0.1.0"
