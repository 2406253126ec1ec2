"""Short labels for the points of an axis, for table rows and lines of a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.core.record import Plain


def label_points(values: Sequence[Any]) -> tuple[Plain, ...]:
    """Return one label a value: plain values unchanged, components by name plus the settings that differ.

    >>> label_points([0.1, 0.2])
    (0.1, 0.2)
    >>> label_points([{"name": "cpl", "steps": 1}, {"name": "cpl", "steps": 2}, {"name": "dlg"}])
    ('cpl steps=1', 'cpl steps=2', 'dlg')
    """
    labels = [label_of(value) for value in values]
    if len(set(map(repr, labels))) == len(labels):
        return tuple(labels)
    again = Counter(map(repr, labels))
    long = [
        f"{label} {_differences(value, values)}".strip() if again[repr(label)] > 1 else label
        for label, value in zip(labels, values, strict=True)
    ]
    seen: Counter[str] = Counter()
    unique: list[Plain] = []
    for label in long:
        seen[repr(label)] += 1
        unique.append(label if seen[repr(label)] == 1 else f"{label} ({seen[repr(label)]})")
    return tuple(unique)


def label_of(value: Any) -> Plain:
    """Return the label of a single value."""
    if isinstance(value, Mapping):
        return str(value.get("label") or value.get("name") or _settings(value))
    if isinstance(value, list | tuple):
        return " + ".join(str(label_of(item)) for item in value) or "none"
    return value  # type: ignore[no-any-return]


def _differences(value: Any, among: Sequence[Any]) -> str:
    if isinstance(value, list | tuple):
        return "; ".join(_settings(item) for item in value if isinstance(item, Mapping))
    if not isinstance(value, Mapping):
        return ""
    alike = [other for other in among if isinstance(other, Mapping) and other.get("name") == value.get("name")]
    differing = {k: v for k, v in value.items() if any(other.get(k) != v for other in alike)}
    return _settings(differing)


def _settings(value: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={label_of(item)}" for key, item in value.items() if key != "label")
