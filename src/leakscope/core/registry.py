"""Lookup of a name in a plain dict, with similar names in the error."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import TypeVar

from leakscope.core.errors import UnknownNameError
from leakscope.core.plugins import broken_plugins, load_plugins

T = TypeVar("T")


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return `table[name]`, or raise an error that lists similar names.

    >>> lookup({"mse": 1, "psnr": 2}, "psnr", "metric")
    2
    >>> lookup({"mse": 1, "psnr": 2}, "pnsr", "metric")
    Traceback (most recent call last):
    ...
    leakscope.core.errors.UnknownNameError: unknown metric 'pnsr'; did you mean 'psnr'? (known: mse, psnr)
    """
    if name not in table:
        load_plugins()
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    lacking = "".join(f"; plug-in {plugin!r} is not loaded ({why})" for plugin, why in broken_plugins().items())
    raise UnknownNameError(f"unknown {kind} {name!r}{hint} (known: {', '.join(sorted(table))}){lacking}")


def summary(piece: object) -> str:
    """Return the first line of a component's docstring, for listings."""
    return (inspect.getdoc(piece) or "").split("\n", 1)[0].rstrip(".")
