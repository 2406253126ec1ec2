"""Errors that name the field, the rule, the value and the nearest valid choice."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")  # on a CPU


class InputError(ValueError):
    """Invalid user input, with a one-line message; the command line prints only the message and exits with code 2."""


class TooLargeError(InputError):
    """One trial does not fit into the memory."""


class UnknownNameError(InputError):
    """An unknown name; the message lists similar ones."""


def import_extra(module: str, extra: str, user: str) -> ModuleType:
    """Return a module that comes with an extra of leakscope; where it is missing, `user` needs that extra."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f'{user} needs the extra "{extra}": pip install "leakscope[{extra}]"') from None


def is_failure(error: BaseException) -> bool:
    """Return whether an error is no statement that something does not apply: what raised it applies, and failed."""
    return not isinstance(error, InputError) or isinstance(error, TooLargeError)


def first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, on CPU or CUDA."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's is not imported here
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
