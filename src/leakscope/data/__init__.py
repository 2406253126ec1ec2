"""Data sets: bundled and fetched ones, file readers, partitions over clients, own images. `load(name)` takes a name of `SOURCES`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy import load_lazily

if TYPE_CHECKING:
    from leakscope.data.adult import read_adult as read_adult
    from leakscope.data.cifar import read_cifar10 as read_cifar10, read_cifar100 as read_cifar100
    from leakscope.data.csv_table import read_csv as read_csv
    from leakscope.data.dataset import Dataset as Dataset, Part as Part
    from leakscope.data.encoding import Category as Category, Encoding as Encoding, Number as Number
    from leakscope.data.femnist import (
        read_femnist as read_femnist, write_femnist_parquet as write_femnist_parquet, write_leaf as write_leaf,
    )  # fmt: skip
    from leakscope.data.fetch import fetch as fetch
    from leakscope.data.folder import read_folder as read_folder
    from leakscope.data.idx import read_idx as read_idx, read_idx_folder as read_idx_folder
    from leakscope.data.label_mix import cut_batches as cut_batches
    from leakscope.data.loading import load as load, locate as locate, own_copy as own_copy, using as using
    from leakscope.data.npz import read_npz as read_npz
    from leakscope.data.partition import (
        IID as IID, PARTITIONS as PARTITIONS, ByClass as ByClass, ByWriter as ByWriter, Dirichlet as Dirichlet,
        Partition as Partition,
    )  # fmt: skip
    from leakscope.data.picture import read_image as read_image
    from leakscope.data.resizing import resize as resize
    from leakscope.data.small_letters import read_small_letters as read_small_letters
    from leakscope.data.sources import SOURCES as SOURCES, Download as Download, Form as Form, Source as Source
    from leakscope.data.text import (
        TextSet as TextSet, Words as Words, generate_text as generate_text, load_text as load_text,
        sentence_set as sentence_set, words_of as words_of,
    )  # fmt: skip
else:
    load_lazily(__name__)  # so that the command line can mount `leakscope data` without loading torch
