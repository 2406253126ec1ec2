"""Errors that name the field, the rule, the value and the nearest valid choice."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave cannot work; the message is one line, fit for the terminal.

    The command line prints the message alone and exits with code 2.
    """


class UnknownNameError(InputError):
    """A name that no table holds; the message lists the near ones."""
