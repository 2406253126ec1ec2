"""Options shared by several commands: help, checks, and the command line that repeats a run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.sweep.engines import Engine

RunPath = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
ENGINES = ("local", "serial", "ray")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

Device = Annotated[str, typer.Option(help="auto (CUDA if available, else the CPU), cpu, cuda or cuda:N.")]
EngineName = Annotated[str, typer.Option(help="local (uses the cores), serial, or ray (extra 'ray').")]
Address = Annotated[str | None, typer.Option(help="Address of a Ray cluster; by default a local one is started.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of processes, also on one GPU; by default one per core, or one on a GPU."),
]
Memory = Annotated[str | None, typer.Option(help="Memory limit of the running chunks, such as 4G.")]
LogJson = Annotated[Path | None, typer.Option(help="Append every event to this file as a line of JSON.")]
KeepPrivate = Annotated[
    bool,
    typer.Option(
        "--keep-private",
        help="Write the clients' private heads to private/, so that an interrupted training can be continued.",
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module that registers your own attacks, defences, data sets, models or metrics; may be repeated.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(
        help="Name of a model, package.module:build, or the YAML file of an audit.", metavar="MODEL", show_default=False
    ),
]
InputShape = Annotated[str | None, typer.Option(help="Shape of one input, such as 3x32x32.", show_default=False)]
Classes = Annotated[int, typer.Option(help="Classes of a model given by name.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]

Value = str | int | float | Path | bool | Sequence[str | Path] | None
Options = Mapping[str, tuple[Value, Value]]  # option -> (value, default)


def choose_device(name: str, *, quiet: bool = False) -> str:
    """Return the device of --device, and print it where it was chosen for the user; refuse one that this machine does not have."""
    from leakscope.core.devices import AUTO, find_device

    try:
        device = str(find_device(name))
    except InputError as error:
        raise InputError(f"--{error}") from None
    if name == AUTO and device != "cpu" and not quiet:
        typer.echo(f"device: {device}", err=True)
    return device


def import_components(modules: Sequence[str] | None, captures: Path | None = None) -> None:
    """Import the modules of --import, which register components; a file in a directory of captures is never imported."""
    from leakscope.core.plugins import import_plugin

    for module in modules or ():
        try:
            import_plugin(module, captures=captures)
        except InputError as error:
            raise InputError(f"--import {module}: {error}") from None


def make_engine(name: str, address: str | None, workers: int | None = None) -> Engine | None:
    """Return the named engine; None leaves the choice to the run."""
    if name not in ENGINES:
        raise InputError(f"--engine must be one of {', '.join(ENGINES)}, got {name!r}")
    if address is not None and name != "ray":
        raise InputError(f"--address is for --engine ray, got it with --engine {name}")
    if workers is not None and name != "local":
        raise InputError(f"--workers is for --engine local, got it with --engine {name}")
    if name == "ray":
        from leakscope.integrations.ray import ray_engine

        return ray_engine(address)
    if name == "serial":
        from leakscope.sweep.engines import serial

        return serial
    return None


def parse_memory(text: str | None) -> int | None:
    """Return a size in bytes.

    >>> parse_memory("1.5G")
    1610612736
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if size < UNITS["M"]:
        raise InputError(f"--memory must be a size of at least 1M, such as 500M or 4G, got {text!r}")
    return size


def shell_command(words: Sequence[str | Path], options: Options) -> str:
    """Return a leakscope command line; `options` are name -> (value, default), and defaults are left out.

    >>> shell_command(["run", Path("my noise.yaml")], {"--engine": ("serial", "local"), "--memory": (None, None)})
    "leakscope run 'my noise.yaml' --engine serial"
    >>> shell_command(["ppc", "a"], {"--along": (["x", "y"], []), "--keep-private": (True, False)})
    'leakscope ppc a --along x --along y --keep-private'
    """
    parts = ["leakscope", *map(str, words)]
    for name, (value, default) in options.items():
        if value == default:
            continue
        if value is True:
            parts.append(name)
            continue
        values = [value] if isinstance(value, str | int | float | Path) else value or []
        parts += [part for one in values for part in (name, str(one))]
    return shlex.join(parts)


def this_command() -> str:
    """Return the command line of this process."""
    return shlex.join(["leakscope", *sys.argv[1:]])


@contextmanager
def writing(target: str | Path, more: str = "") -> Iterator[None]:
    """Turn a failed write into a one-line error: target, reason, and `more`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror or error}){more}") from None


def name_file(path: Path) -> None:
    """Print the name of a file that was written; nothing after `-` or a device, whose output it would join."""
    if path.is_file() and not path.is_symlink():
        typer.echo(str(path))
