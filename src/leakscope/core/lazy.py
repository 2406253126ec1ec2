"""Packages whose names are loaded on first use.

Such a package lists its names once, as imports for type checkers, which are also the lookup table at run time:

    if TYPE_CHECKING:
        from package.module import name as name
    else:
        load_lazily(__name__)
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from types import ModuleType


def load_lazily(package: str) -> None:
    """Make the names that `package` imports under `if TYPE_CHECKING` load on first use."""
    module = sys.modules[package]
    module.__dict__["__origins__"] = origins(package)
    module.__dict__["__all__"] = sorted(module.__dict__["__origins__"])
    module.__class__ = LazyPackage


def origins(package: str) -> dict[str, str]:
    """Return the module behind every name that `package` imports under `if TYPE_CHECKING`."""
    spec = sys.modules[package].__spec__
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(package)
    if source is None:
        raise ImportError(f"the names of {package} are read from its source, which is not there")
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


class LazyPackage(ModuleType):
    """A package that imports a name on first access; names win over submodules of the same name (`leakscope.audit` is the function)."""

    __origins__: dict[str, str]

    def __getattr__(self, name: str) -> object:
        if name not in self.__origins__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        origin = import_module(self.__origins__[name])
        value = getattr(origin, name, None)
        self.__dict__[name] = import_module(f"{origin.__name__}.{name}") if value is None else value
        return self.__dict__[name]

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in self.__origins__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__origins__})
