"""Trained weights on disk: a safetensors file with the parameters and buffers of a network.

`leakscope train` also writes the architecture, so that weights of another network are refused even if all shapes agree (a ResNet
without strides, tanh instead of sigmoid). Any other safetensors file with matching names and shapes is accepted.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.models.adapter import Functional

SUFFIX = ".safetensors"
FOLDER = "checkpoints"
KEY = "leakscope"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Start every trial from trained weights: `path` is a file, or a training directory with the `round` to use.

    `sha256` is checked against the file; if empty it is filled in for each trial, whose identity thus includes the weights.
    """

    path: str
    round: int | None = None
    sha256: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            raise InputError("Checkpoint.path must name a file or the directory of a training, got nothing")
        if self.round is not None and self.round < 0:
            raise InputError(f"Checkpoint.round must not be below 0, got {self.round}")

    def file(self) -> Path:
        """Return the file; a directory must hold the requested round."""
        given = Path(self.path)
        if not given.is_dir():
            return given
        files = ((p.stem.rpartition("-")[2], p) for p in sorted((given / FOLDER).glob(f"round-*{SUFFIX}")))
        known = {int(number): p for number, p in files if number.isdecimal()}
        rounds = ", ".join(map(str, sorted(known))) or "none"
        if self.round is None:
            raise InputError(f"Checkpoint.round must be given with the directory {given}; it holds rounds: {rounds}")
        if self.round not in known:
            raise InputError(f"Checkpoint.round {self.round} is not in {given}; it holds rounds: {rounds}")
        return known[self.round]

    def digest(self) -> str:
        """Return the SHA-256 of the file."""
        file = self.file()
        try:
            facts = file.stat()
        except FileNotFoundError:
            raise InputError(_missing(file)) from None
        except OSError as error:
            raise InputError(f"cannot read the checkpoint {file} ({error.strerror})") from None
        return _digest(file, facts.st_mtime_ns, facts.st_size)

    def load(self, model: Model) -> Model:
        """Return the network with the weights and buffers of the file, after checking that they belong to it."""
        file = self.file()
        if self.sha256 and self.digest() != self.sha256:
            raise InputError(f"{file} has changed: its content differs from sha256 {self.sha256[:12]}...")
        values, about = read_checkpoint(file)
        if self.round is not None and about.get("round", self.round) != self.round:
            raise InputError(f"{file} is the checkpoint of round {about['round']}, not of round {self.round}")
        return with_values(model, values, about, str(file))

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return one copy of the parameters per key."""
        return copy_parameters(self.load(model), keys)


def copy_parameters(model: Model, keys: Tensor) -> Tree:
    """Return one copy of a network's parameters per key."""
    return {n: v.to(keys.device).expand(len(keys), *v.shape).clone() for n, v in model.parameters.items()}


def file_name(number: int) -> str:
    """Return the name of a round's checkpoint in the directory of a training.

    >>> file_name(5)
    'checkpoints/round-00005.safetensors'
    """
    return f"{FOLDER}/round-{number:05}{SUFFIX}"


def pack_checkpoint(model: Model, parameters: Tree, buffers: Tree, about: Mapping[str, object]) -> bytes:
    """Return the bytes of a checkpoint without private parameters; `about` (round, accuracy ...) is its metadata."""
    from safetensors.torch import save

    flat = {**model.shared(parameters), **buffers}
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in flat.items()}
    known = {**_facts(model), "architecture": architecture(model), **about}
    return save(plain, metadata={KEY: json.dumps(known)})


def read_checkpoint(file: Path) -> tuple[Tree, dict[str, object]]:
    """Return the tensors and metadata of a file; the metadata is empty if leakscope did not write it."""
    with _opened(file) as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}, _about(tensors)  # noqa: SIM118


def read_about(file: Path) -> dict[str, object]:
    """Return the metadata of a file."""
    with _opened(file) as tensors:
        return _about(tensors)


def _about(tensors: Any) -> dict[str, object]:
    return dict(json.loads((tensors.metadata() or {}).get(KEY, "{}")))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if file.exists() and not file.is_file():  # opening a FIFO waits for ever
        raise InputError(f"{file} is no plain file: a checkpoint is one")
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{file} is not a sound safetensors file ({reason})") from None
    except FileNotFoundError:  # safetensors sets no strerror
        raise InputError(_missing(file)) from None
    except OSError as error:
        raise InputError(f"cannot read the checkpoint {file} ({error.strerror or error})") from None


def check_scaling(checkpoint: Checkpoint, scaling: str) -> None:
    """Raise if the checkpoint's training used another scaling, as far as the file says."""
    file = checkpoint.file()
    theirs = read_about(file).get("scaling", scaling)
    if theirs != scaling:
        raise InputError(
            f"{file} was trained with data.scaling {theirs}, this scenario has {scaling}: give scaling: {theirs}"
        )


def _missing(file: Path) -> str:
    return f"there is no checkpoint {file}: name a safetensors file, or the directory of a training with its round"


def with_values(model: Model, values: Tree, about: Mapping[str, object], source: str) -> Model:
    """Return the network with these values; raise if they belong to another network."""
    if "curve" in about:
        raise InputError(
            f"{source} is the state of a training: name its directory and a round, or a file in checkpoints/"
        )
    problem = _other_network(model, about) or _other_tensors(model, values)
    if problem:
        raise InputError(f"{source} is a checkpoint of another architecture: {problem}")
    for name in values:
        if values[name].is_floating_point() and not bool(values[name].isfinite().all()):
            raise InputError(f"{source}: {name!r} holds NaN or infinity; the training diverged")
    return replace(
        model,
        parameters={name: values[name].to(v.dtype) if name in values else v for name, v in model.parameters.items()},
        buffers={name: values[name].to(v.dtype) if name in values else v for name, v in model.buffers.items()},
    )


def architecture(model: Model) -> str:
    """Return the layers of a network as text, without dropouts (which hold no weights); empty if unknown."""
    if not isinstance(model.apply, Functional):
        return ""
    return "\n".join(line for line in repr(model.apply.module).splitlines() if "Dropout" not in line)


def _other_network(model: Model, about: Mapping[str, object]) -> str:
    theirs, ours = str(about.get("architecture", "")), architecture(model)
    if not theirs or not ours or theirs == ours:
        return ""
    expected, stored = (_title(facts) for facts in (_facts(model), about))
    pairs = zip_longest(theirs.splitlines(), ours.splitlines(), fillvalue="nothing")
    first, second = next((a.strip(), b.strip()) for a, b in pairs if a != b)
    return f"it holds {stored} with {first}, the network is {expected} with {second} in its place"


def _facts(model: Model) -> dict[str, object]:
    return {"model": model.name, "input_shape": list(model.input_shape), "classes": model.classes}


def _title(facts: Mapping[str, object]) -> str:
    shape = facts.get("input_shape")
    inputs = "x".join(map(str, shape)) if isinstance(shape, list) else shape
    return f"{facts.get('model')} ({inputs}, {facts.get('classes')} classes)"


def _other_tensors(model: Model, values: Tree) -> str:
    """Return the first name or shape that does not fit; private parameters and buffers may be absent."""
    ours = {**model.parameters, **model.buffers}
    for name, value in ours.items():
        if name in values and values[name].shape != value.shape:
            return f"{name} is {tuple(values[name].shape)}, {model.name} needs {tuple(value.shape)}"
        if name not in values and name in model.parameters and name not in model.private:
            return f"it has no {name}, which {model.name} needs"
    extra = next((name for name in values if name not in ours), None)
    return f"it has {extra}, which {model.name} has not" if extra else ""


@functools.lru_cache(maxsize=64)
def _digest(file: Path, changed: int, size: int) -> str:
    """Return the SHA-256 of a file, cached until its time or size changes."""
    del changed, size
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
