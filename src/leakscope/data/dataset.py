"""A labelled data set, and the check that every reader's result passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.core.scaling import Scaling
from leakscope.data.encoding import Encoding
from leakscope.data.resizing import resize

Array = npt.NDArray[Any]
Index = int | slice | Sequence[int] | Array | Tensor
Kind = Literal["image", "table", "text"]
Part = Literal["train", "test"]
PADDING = "<pad>"  # the first word of a vocabulary


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset:
    """Two parts of labelled images, rows or sentences: images and rows are returned as floats in [0, 1], sentences as token numbers.

    Images are stored as uint8, N x C x H x W; rows as float32 in [0, 1], N x F; sentences as int32, N x L, token k being `words[k]`.
    For a normalised network use `replace(dataset, scaling=dataset.statistics)`.
    """

    name: str
    kind: Kind
    x_train: Array = field(repr=False)
    y_train: Array = field(repr=False)
    x_test: Array = field(repr=False)
    y_test: Array = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    scaling: Scaling = field(default_factory=Scaling)  # of a network's inputs; none, as in DLG and CPL
    statistics: Scaling = field(default_factory=Scaling)  # the usual mean and standard deviation of the set
    groups_train: Array | None = field(default=None, repr=False)  # the source of each example (a writer, a photograph)
    groups_test: Array | None = field(default=None, repr=False)
    encoding: Encoding | None = field(default=None, repr=False)
    words: tuple[str, ...] = field(default=(), repr=False)  # of sentences: the vocabulary
    source: str = field(default="", repr=False)  # the file, for error messages
    side: int | None = None  # images are resized to side x side when they are returned

    def __post_init__(self) -> None:
        where = self.source or f"data set {self.name!r}"
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            _check_inputs(where, f"x_{part}", x, self.kind, len(self.words))
            y = _checked_labels(where, f"y_{part}", y, len(x), len(self.class_names))
            groups = getattr(self, f"groups_{part}")
            if groups is not None and groups.shape != (len(x),):
                raise InputError(f"{where}: the groups of {part} must be {len(x)} numbers, got shape {groups.shape}")
            for name, array in ((f"x_{part}", x), (f"y_{part}", y), (f"groups_{part}", groups)):
                object.__setattr__(self, name, _frozen(array))
        if self.side is not None and self.kind != "image":
            raise InputError(f"{where}: only pictures can be resized, not a {self.kind}")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise InputError(f"{where}: train is {self.x_train.shape[1:]} an input, test is {self.x_test.shape[1:]}")
        if self.encoding is not None and self.input_shape != (self.encoding.width,):
            raise InputError(f"{where}: rows have shape {self.input_shape}, the encoding is {self.encoding.width} wide")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one returned input: (C, H, W), (F,) or (L,)."""
        held = tuple(self.x_train.shape[1:])
        return held if self.side is None else (held[0], self.side, self.side)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def padding(self) -> int | None:
        """The token that fills short sentences; None if none is short."""
        short = self.words[:1] == (PADDING,) and not (self.x_train.all() and self.x_test.all())
        return 0 if short else None

    def size(self, part: Part) -> int:
        """Return the number of examples in a part."""
        return len(lookup({"train": self.y_train, "test": self.y_test}, part, "part"))

    def pictures(self, part: Part, index: Index) -> Tensor:
        """Return the inputs at `index` as a new float32 tensor, in [0, 1] or token numbers; an integer gives one input."""
        x = self._take({"train": self.x_train, "test": self.x_test}, part, index).astype(np.float32)
        handed = torch.from_numpy(x / np.float32(255) if self.kind == "image" else x)
        return handed if self.side is None else resize(handed, self.side)

    def labels(self, part: Part, index: Index) -> Tensor:
        """Return the labels at `index` as a new int64 tensor."""
        return torch.from_numpy(self._take({"train": self.y_train, "test": self.y_test}, part, index).copy())

    def _take(self, arrays: dict[str, Array], part: str, index: Index) -> Array:
        array = lookup(arrays, part, "part")
        chosen = index if isinstance(index, slice) else np.asarray(index)
        if isinstance(chosen, np.ndarray) and not chosen.size:
            chosen = chosen.astype(np.int64)
        try:
            return np.asarray(array[chosen])
        except IndexError as error:
            raise InputError(f"index of {self.name} {part} must lie in 0 .. {len(array) - 1}: {error}") from error


def image_set(
    name: str, train: tuple[Array, Array], test: tuple[Array, Array], class_names: tuple[str, ...], source: str
) -> Dataset:
    """Return a data set of images from the (pictures, labels) of its two parts."""
    (x_train, y_train), (x_test, y_test) = train, test
    return Dataset(
        name=name, kind="image", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test,
        class_names=class_names, source=source,
    )  # fmt: skip


def _check_inputs(where: str, name: str, x: Array, kind: Kind, words: int) -> None:
    """Raise unless `x` is uint8 N x C x H x W with 1 or 3 channels, float32 N x F in [0, 1], or int32 N x L below `words`."""
    if kind == "image":
        if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[1:]:
            raise InputError(f"{where}: {name} must be pictures N x C x H x W with C 1 or 3, got shape {x.shape}")
        if x.dtype != np.uint8:
            raise InputError(f"{where}: the pictures of {name} must be uint8, got {x.dtype}")
    elif kind == "text":
        if x.ndim != 2 or not x.shape[1] or x.dtype != np.int32:
            raise InputError(f"{where}: {name} must be int32 token numbers N x L, got {x.dtype} of shape {x.shape}")
        if x.size and not (x.min() >= 0 and x.max() < words):
            raise InputError(f"{where}: tokens of {name} must lie in 0 .. {words - 1}, got {x.min()} .. {x.max()}")
    else:
        if x.ndim != 2 or not x.shape[1]:
            raise InputError(f"{where}: {name} must be a table N x F, got shape {x.shape}")
        if x.dtype != np.float32:
            raise InputError(f"{where}: the rows of {name} must be float32, got {x.dtype}")
        if x.size and not (x.min() >= 0 and x.max() <= 1):  # false for NaN as well
            raise InputError(f"{where}: {name} must lie in [0, 1], got {x.min()} .. {x.max()}")


def _checked_labels(where: str, name: str, y: Array, number: int, classes: int) -> Array:
    """Return labels as int64 after checking that there is one per example and each is a valid class."""
    if y.shape != (number,):
        raise InputError(f"{where}: {name} must hold one label for each of {number} examples, got shape {y.shape}")
    if not np.issubdtype(y.dtype, np.integer):
        raise InputError(f"{where}: the labels of {name} must be whole numbers, got {y.dtype}")
    if y.size and not (y.min() >= 0 and y.max() < classes):
        raise InputError(f"{where}: labels of {name} must lie in 0 .. {classes - 1}, got {y.min()} .. {y.max()}")
    return y.astype(np.int64)


def _frozen(array: Array | None) -> Array | None:
    """Return a read-only view, so that no trial changes the data of another."""
    if array is None:
        return None
    view = array.view()
    view.flags.writeable = False
    return view
