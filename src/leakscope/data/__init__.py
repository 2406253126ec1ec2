"""Private data to leak: bundled and fetched sets, readers for the usual files, and a user's own pictures.

`load(name)` answers for every name in `SOURCES`; the readers take a path; downloads live in `leakscope.data.fetch`.
Names are looked up on first use, so that the command line can mount `leakscope.data.commands` without paying for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.data.adult import read_adult
    from leakscope.data.cifar import read_cifar10, read_cifar100
    from leakscope.data.csv_table import read_csv
    from leakscope.data.dataset import Dataset, Part
    from leakscope.data.encoding import Category, Encoding, Number
    from leakscope.data.folder import read_folder
    from leakscope.data.idx import read_idx, read_idx_folder
    from leakscope.data.loading import load, locate
    from leakscope.data.npz import read_npz
    from leakscope.data.picture import own_picture
    from leakscope.data.sources import SOURCES, Source

__all__ = [
    "SOURCES",
    "Category",
    "Dataset",
    "Encoding",
    "Number",
    "Part",
    "Source",
    "load",
    "locate",
    "own_picture",
    "read_adult",
    "read_cifar10",
    "read_cifar100",
    "read_csv",
    "read_folder",
    "read_idx",
    "read_idx_folder",
    "read_npz",
]

_HOME = {
    "SOURCES": "sources",
    "Category": "encoding",
    "Dataset": "dataset",
    "Encoding": "encoding",
    "Number": "encoding",
    "Part": "dataset",
    "Source": "sources",
    "load": "loading",
    "locate": "loading",
    "own_picture": "picture",
    "read_adult": "adult",
    "read_cifar10": "cifar",
    "read_cifar100": "cifar",
    "read_csv": "csv_table",
    "read_folder": "folder",
    "read_idx": "idx",
    "read_idx_folder": "idx",
    "read_npz": "npz",
}


if not TYPE_CHECKING:  # a type checker reads the imports above, and still finds misspelt names

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
