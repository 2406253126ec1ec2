"""Pieces from outside leakscope: the modules that register them, from where, and how other processes get them too.

A module registers attacks, defences, data sets, models and metrics when it is imported. It is imported because a command names it
(`--import MODULE`), because an installed package names it in the entry point group `leakscope.plugins`, or by the user's own code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from leakscope.core.errors import InputError, first_line

GROUP = "leakscope.plugins"
FIELDS = {"attack": "attack", "defence": "defences", "data set": "data", "model": "model", "metric": "metrics"}


class _Cached(Protocol):
    def cache_clear(self) -> None: ...


C = TypeVar("C", bound=_Cached)
T = TypeVar("T")


@dataclass(slots=True)
class _State:
    """What this process has loaded: (kind, name) -> module, module -> directory it was looked up in, broken plug-ins, caches."""

    pieces: dict[tuple[str, str], str] = field(default_factory=dict)
    removers: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)
    imports: dict[str, str | None] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    caches: list[Callable[[], None]] = field(default_factory=list)
    loading: str = ""
    searched: bool = False  # whether the entry points were read


_state = _State()


def until_registration(cached: C) -> C:
    """Return a cached function whose cache is emptied when a piece is registered."""
    _state.caches.append(cached.cache_clear)
    return cached


def register(kind: str, table: dict[str, T], name: str, piece: T, *, taken: Iterable[str] = ()) -> None:
    """Put a piece into its table under a new name; the module that calls the public function is its origin."""
    module, place = _state.loading or str(sys._getframe(2).f_globals.get("__name__", "__main__")), (kind, name)
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise InputError(f"{kind} {name!r:.60}: a name has letters, digits and _ only, and begins with no digit")
    owner = _state.pieces.get(place)
    if owner is None and (name in table or name in taken):
        raise InputError(f"{kind} {name!r} of {module} has the name of a built-in {kind}: give it another")
    if owner is not None and owner != module:
        raise InputError(f"{kind} {name!r} of {module} has the name of a {kind} of {owner}: one of them needs another")
    table[name] = piece
    _state.pieces[place] = module
    _state.removers[place] = lambda: table.pop(name)
    _state.imports.setdefault(module, None)
    forget_caches()


def unregister(kind: str, name: str) -> None:
    """Remove a registered piece from its table."""
    _state.removers.pop((kind, name))()
    del _state.pieces[kind, name]
    forget_caches()


def forget_caches() -> None:
    """Empty every cache of `until_registration`."""
    for clear in _state.caches:
        clear()


def origin(kind: str, name: str) -> str | None:
    """Return the module that registered a piece; None for a built-in one."""
    return _state.pieces.get((kind, name))


def registered(kind: str) -> list[str]:
    """Return the names of the registered pieces of a kind."""
    return [name for each, name in _state.pieces if each == kind]


def broken_plugins() -> Mapping[str, str]:
    """Return why each installed plug-in that cannot be loaded cannot, by its name."""
    return dict(_state.broken)


def load_plugins() -> None:
    """Import the modules of all installed plug-ins, once; one that fails registers nothing and gets a line on stderr."""
    if _state.searched:
        return
    _state.searched = True
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            if point.attr:
                raise InputError("the entry point must name a module, without a function")
            with _loading(point.module):
                importlib.import_module(point.module)
        except (Exception, SystemExit) as error:  # another package's import may fail in any way
            _state.broken[point.name] = f"{point.value}: {_named(error)}"
            sys.stderr.write(f"leakscope: plug-in {point.name!r} is not loaded ({_state.broken[point.name]})\n")


def _named(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}"


@contextmanager
def _loading(module: str, directory: str | None = None) -> Iterator[None]:
    """Attribute what is registered inside to a module; where it fails, remove that again."""
    outer, before = _state.loading, set(_state.pieces)
    _state.loading = outer or module
    try:
        yield
    except BaseException:
        for place in set(_state.pieces) - before:
            unregister(*place)
        _state.imports.pop(module, None)
        raise
    finally:
        _state.loading = outer
    _state.imports[module] = directory or _state.imports.get(module)


def import_plugin(name: str, *, captures: Path | None = None, directory: str | None = None) -> None:
    """Import a module that registers pieces; `directory` is where another process found it."""
    load_plugins()
    known, before = name in sys.modules, len(_state.pieces)
    here = Path(directory) if directory else Path.cwd()
    with _loading(name, str(here)):
        import_named(name, captures, here)
    if not known and len(_state.pieces) == before:
        raise InputError(f"{name} registers nothing: it must call leakscope.register_attack or the like when imported")


def plugin_imports() -> tuple[tuple[str, str | None], ...]:
    """Return the modules, with the directory each may lie in, that another process must import to know the same pieces."""
    return tuple((module, place) for module, place in _state.imports.items() if module != "__main__")


def registered_in(settings: Iterable[Mapping[str, object]]) -> dict[tuple[str, str], str]:
    """Return (kind, name) -> module of all registered pieces that settings of a scenario or training name."""
    named: set[tuple[str, str]] = set()
    for plain in settings:
        for kind, key in FIELDS.items():
            value = plain.get(key)
            for item in value if isinstance(value, list | tuple) else [value]:
                named.add((kind, str(item.get("name") if isinstance(item, Mapping) else item)))
    return {place: module for place, module in _state.pieces.items() if place in named}


def plugin_facts(settings: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return which registered pieces are used and the modules to import for them, as facts of a run; {} if none is used."""
    used = registered_in(settings)
    if not used:
        return {}
    pieces = ", ".join(f"{kind} {name}" for kind, name in used)
    return {"imports": " ".join(sorted(set(used.values()))), "own pieces": pieces}


def check_imports(what: str | Path, facts: Mapping[str, str]) -> None:
    """Refuse to continue a run or training whose recorded modules are not imported now."""
    load_plugins()
    missing = [module for module in facts.get("imports", "").split() if module not in _state.imports]
    if missing:
        raise InputError(
            f"{what} uses components of {', '.join(missing)} ({facts.get('own pieces', '')}): give --import {missing[0]}, "
            "or install the package that registers them"
        )


@dataclass(frozen=True, slots=True)
class _Directory:
    """Finds the one module or package `name` in one directory."""

    name: str
    directory: Path

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return where the module is; None for every other module."""
        return PathFinder.find_spec(name, [str(self.directory)]) if name == self.name else None


def import_named(name: str, captures: Path | None = None, here: Path | None = None) -> ModuleType:
    """Return a module. Its top package is looked up last in the working directory, and never among captures; nothing else is."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"a module is named such as package.module, got {name!r:.80}")
    top, here = name.partition(".")[0], (here or Path.cwd()).resolve()
    inside = captures is not None and captures.resolve() in here.joinpath(*name.split(".")).resolve().parents
    among_captures = inside or any(here.glob("round-*-client-*.json"))
    finder = _Directory("" if among_captures else top, here)
    sys.meta_path.append(finder)
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything when it is imported
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        hint = f"; run this in the directory that contains {top}, or install it" if missing == top else ""
        if missing == top and among_captures:
            hint = f"; no code in a directory of captures is run: install {top} or run this elsewhere"
        elif missing and missing != top and PathFinder.find_spec(missing, [str(here)]):
            hint = f"; only {top} is looked up in this directory: put both into one package, or set PYTHONPATH"
        raise InputError(f"{name} cannot be imported ({_named(error)}){hint}") from None
    finally:
        sys.meta_path.remove(finder)
