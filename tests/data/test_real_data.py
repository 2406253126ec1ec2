"""Every file under LEAKSCOPE_DATA against the counts that its makers state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leakscope.data.adult import read_adult
from leakscope.data.cifar import CIFAR10, CIFAR100
from leakscope.data.csv_table import parse_rows, read_text
from leakscope.data.loading import BUNDLED, load
from leakscope.data.sources import FASHION, SOURCES

pytestmark = pytest.mark.real_data

COUNTS = {
    "mnist": (10_000, 2_000),
    "fashion_mnist": (10_000, 2_000),
    "emnist_byclass": (10_000, 2_000),
    "cifar10": (10_000, 2_000),
    "cifar100": (10_000, 2_000),
    "svhn": (5_000, 1_000),
    "lfw_face": (3_176, 559),
    "lfw_128": (0, 100),
    "adult": (32_561, 16_281),
    "breast_cancer": (455, 114),
}
A_CLASS = {
    "mnist": ({1000}, {200}),
    "fashion_mnist": ({1000}, {200}),
    "emnist_byclass": ({161, 162}, {32, 33}),
    "cifar10": ({1000}, {200}),
    "cifar100": ({100}, {20}),
    "svhn": ({500}, {100}),
}


def test_every_file_is_known(data_directory: Path) -> None:
    files = {path.name.split(".")[0] for path in data_directory.iterdir() if path.suffix in (".npz", ".gz")}
    assert files == set(COUNTS)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_counts_shape_and_range(name: str, data_directory: Path) -> None:
    data, source = load(name, data_directory), SOURCES[name]
    assert (data.size("train"), data.size("test")) == COUNTS[name]
    assert (data.kind, data.input_shape, data.classes) == (source.kind, source.shape, source.classes)
    for part in ("train", "test"):
        x = data.pictures(part, slice(0, 64))
        assert x.shape[1:] == data.input_shape
        assert ((x >= 0) & (x <= 1)).all()
    for labels, expected in zip((data.y_train, data.y_test), A_CLASS.get(name, ()), strict=False):
        assert set(np.bincount(labels, minlength=data.classes).tolist()) == expected


@pytest.mark.parametrize("name", sorted(name for name in A_CLASS if SOURCES[name].statistics.mean != (0.0,)))
def test_the_usual_statistics_fit_the_pictures(name: str, data_directory: Path) -> None:
    data = load(name, data_directory)
    x = data.pictures("train", slice(None))
    np.testing.assert_allclose(x.mean((0, 2, 3)), data.statistics.mean, atol=0.005)
    np.testing.assert_allclose(x.std((0, 2, 3)), data.statistics.std, atol=0.005)


def test_names_of_classes(data_directory: Path) -> None:
    assert load("cifar10", data_directory).class_names == CIFAR10
    assert load("cifar100", data_directory).class_names == CIFAR100
    assert load("fashion_mnist", data_directory).class_names == FASHION


def test_writers_and_photographs(data_directory: Path) -> None:
    mnist, svhn = load("mnist", data_directory), load("svhn", data_directory)
    assert mnist.groups_train is not None
    assert mnist.groups_test is not None
    count = np.unique(mnist.groups_train, return_counts=True)[1]
    assert (len(count), count.min(), count.max()) == (539, 2, 32)
    assert len(np.unique(mnist.groups_test)) == 294
    assert svhn.groups_train is not None
    assert len(svhn.groups_train) == 5_000


def test_the_bundled_pictures_are_those_of_the_official_files(data_directory: Path) -> None:
    """Where the bundled draw and this one overlap, by position in the official file, the pictures are the same."""
    with np.load(data_directory / "fashion_mnist.npz", allow_pickle=False) as theirs:
        examples = zip(theirs["index_train"].tolist(), theirs["x_train"], theirs["y_train"], strict=True)
        by_place = {place: (picture, label) for place, picture, label in examples}
    with np.load(BUNDLED / "fashion_mnist.npz", allow_pickle=False) as ours:
        places, x, y = ours["index_train"].tolist(), ours["x_train"], ours["y_train"]
    shared = [i for i, place in enumerate(places) if place in by_place]
    assert len(shared) > 300
    for i in shared:
        picture, label = by_place[places[i]]
        assert np.array_equal(x[i], picture)
        assert y[i] == label


@pytest.mark.slow
def test_every_row_of_adult_comes_back(data_directory: Path) -> None:
    path = data_directory / "adult.csv.gz"
    data = read_adult(path)
    assert data.encoding is not None
    assert data.y_train.sum() == 7_841
    assert data.y_test.sum() == 3_846
    text = parse_rows(str(path), read_text(path))
    names = [column.name for column in data.encoding.columns]
    for part, x in (("train", data.x_train), ("test", data.x_test)):
        chosen = [i for i, value in enumerate(text["split"]) if value == part]
        decoded = data.encoding.decode(x)
        assert [[str(row[name]) for name in names] for row in decoded] == [[text[n][i] for n in names] for i in chosen]
    some = data.encoding.decode(data.x_test[:500])
    assert np.array_equal(data.encoding.encode(some), data.x_test[:500])
    complete = [all(text[name][i] != "?" for name in names) for i in range(len(text["split"]))]
    assert sum(complete[: data.size("train")]) == 30_162
    assert sum(complete[data.size("train") :]) == 15_060
