"""Errors that name the field, the rule, the value and the nearest valid choice."""

from __future__ import annotations


class InputError(ValueError):
    """Invalid user input, with a one-line message; the command line prints only the message and exits with code 2."""


class UnknownNameError(InputError):
    """An unknown name; the message lists similar ones."""
