"""Locating a named data set: bundled, in a directory, or in the cache of fetched files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.plugins import forget_caches
from leakscope.core.registry import lookup
from leakscope.data.dataset import Dataset
from leakscope.data.sources import SOURCES, Form, Source

BUNDLED = Path(__file__).parent / "bundled"
DATA_VARIABLE, CACHE_VARIABLE = "LEAKSCOPE_DATA", "LEAKSCOPE_CACHE"


def load(name: str, directory: Path | str | None = None) -> Dataset:
    """Return the data set called `name`: bundled, else from $LEAKSCOPE_DATA, the cache of `leakscope data fetch`, or another package.

    If `directory` is given, it is the only place searched, also for bundled names.
    """
    source = lookup(SOURCES, name, "data set")
    location = locate(name, directory)
    if location is None and source.make is not None and directory is None:
        return replace(source.make(), name=name, statistics=source.statistics)
    if location is None:
        raise InputError(_how_to_get(name, source, directory))
    path, form = location
    return replace(form.read(path), name=name, statistics=source.statistics)


def locate(name: str, directory: Path | str | None = None) -> tuple[Path, Form] | None:
    """Return the path and form of a data set, or None if it is not found; nothing is read."""
    source = lookup(SOURCES, name, "data set")
    own = own_copy(name) if directory is None else None
    if own is not None:
        return own, _form_of(name, source, own)
    places = [BUNDLED] if source.bundled and directory is None else _places(directory)
    for place in places:
        for form in source.forms:
            if (place / form.path / form.marker).exists():
                return place / form.path, form
    return None


def own_copy(name: str) -> Path | None:
    """Return the path of the user's own copy of a data set, in $LEAKSCOPE_DATA_NAME (such as LEAKSCOPE_DATA_FEMNIST); None if unset."""
    given = os.environ.get(f"{DATA_VARIABLE}_{name.upper()}")
    return Path(given) if given else None


@contextmanager
def using(copies: Mapping[str, Path]) -> Iterator[None]:
    """Load these data sets from these paths, also in worker processes started meanwhile."""
    for name, path in copies.items():
        _form_of(name, lookup(SOURCES, name, "data set"), path)
        if not path.exists():
            raise InputError(f"the copy of {name}, {path}, does not exist")
    variables = {f"{DATA_VARIABLE}_{name.upper()}": str(path.absolute()) for name, path in copies.items()}
    before = {variable: os.environ.get(variable) for variable in variables}
    os.environ.update(variables)
    if copies:
        forget_caches()
    try:
        yield
    finally:
        for variable, value in before.items():
            os.environ.pop(variable)
            os.environ.update({} if value is None else {variable: value})
        if copies:
            forget_caches()


def _form_of(name: str, source: Source, path: Path) -> Form:
    """Return the form of a data set by the suffix of its file; a folder has none."""
    forms = {Path(form.path).suffix: form for form in reversed(source.forms)}
    if not forms:
        raise InputError(f"data set {name!r} is no file, so there is no copy of it: got {path}")
    if path.suffix not in forms:
        known = ", ".join(suffix or "folder" for suffix in forms)
        raise InputError(f"a copy of {name} must be one of {known}, got {path}")
    return forms[path.suffix]


def cache_directory() -> Path:
    """Return the directory of fetched files: $LEAKSCOPE_CACHE, else ~/.cache/leakscope."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "leakscope"


def _places(directory: Path | str | None) -> list[Path]:
    """Return the directories to search; a given one that does not exist is an error."""
    if directory is not None:
        if not Path(directory).is_dir():
            raise InputError(f"the data directory {directory} does not exist")
        return [Path(directory)]
    given = os.environ.get(DATA_VARIABLE)
    if given and not Path(given).is_dir():
        raise InputError(f"{DATA_VARIABLE} points to {given}, which is not a directory")
    return [*([Path(given)] if given else []), cache_directory()]


def _how_to_get(name: str, source: Source, directory: Path | str | None) -> str:
    """Return a message that says what is missing and how to get it."""
    if not source.forms:
        return f"data set {name!r} is no file to put into {directory}: leave the directory out"
    file = source.forms[0].path
    looked = " and ".join(str(place) for place in _places(directory))
    start = f"data set {name!r} not found in {looked}: "
    if source.bundled:
        return f"{start}put {file} into it, or leave the directory out to use the bundled one"
    if not source.downloads:
        return f"{start}set {DATA_VARIABLE} to a directory with {file}; it cannot be fetched (origin: {source.origin})"
    return f"{start}set {DATA_VARIABLE} to a directory with {file}, or run `leakscope data fetch {name}`"
