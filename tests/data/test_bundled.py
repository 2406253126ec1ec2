from __future__ import annotations

import runpy
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from leakscope.data.loading import BUNDLED, load
from leakscope.data.sources import SOURCES

TOOL = Path(__file__).parents[2] / "tools" / "bundle_data.py"
NAMES = sorted(path.stem for path in BUNDLED.glob("*.npz"))


def test_the_bundled_files_are_the_ones_the_table_names() -> None:
    assert sorted(name for name, source in SOURCES.items() if source.bundled) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_bundled_file_is_small_and_has_its_licence_beside_it(name: str) -> None:
    assert (BUNDLED / f"{name}.npz").stat().st_size <= 2_000_000
    licence = (BUNDLED / f"{name}.LICENSE.txt").read_text(encoding="utf-8")
    assert "MIT License" in licence or "CC BY 4.0" in licence
    terms = SOURCES[name].terms
    assert terms.split(",")[0].split(" (")[0] in licence
    assert "Zalando SE" in licence or "https://doi.org/10.24432/" in licence


@pytest.mark.parametrize("name", NAMES)
def test_every_bundled_file_holds_what_the_table_says(name: str) -> None:
    source, data = SOURCES[name], load(name)
    assert (data.name, data.kind, data.input_shape, data.classes) == (name, source.kind, source.shape, source.classes)
    assert data.statistics == source.statistics
    assert f"{data.size('train'):,} + {data.size('test'):,}" in source.description
    for part in ("train", "test"):
        x = data.pictures(part, slice(None))
        assert x.min() == 0 or part == "test"
        assert 0 <= x.min() < x.max() <= 1
    together = np.concatenate([data.x_train, data.x_test]).reshape(data.size("train") + data.size("test"), -1)
    assert len(np.unique(together, axis=0)) == len(together)  # train and test share nothing


def test_balance() -> None:
    fashion, digits = load("fashion_mnist"), load("digits")
    assert np.bincount(fashion.y_train).tolist() == [300] * 10
    assert np.bincount(fashion.y_test).tolist() == [100] * 10
    for labels in (digits.y_train, digits.y_test):
        share = np.bincount(labels) / len(labels)
        assert np.abs(share - 0.1).max() < 0.005


def test_the_usual_statistics_are_those_of_the_pictures() -> None:
    data = load("fashion_mnist")
    x = data.pictures("train", slice(None))
    assert x.mean().item() == pytest.approx(data.statistics.mean[0], abs=0.01)
    assert x.std().item() == pytest.approx(data.statistics.std[0], abs=0.01)


def test_digits_and_breast_cancer_are_scikit_learns() -> None:
    from sklearn.datasets import load_breast_cancer, load_digits

    data, original = load("digits"), load_digits()
    sixteenths = np.rint(np.concatenate([data.x_train, data.x_test])[:, 0] * (16 / 255)).astype(int)
    mine = sorted(map(tuple, sixteenths.reshape(1797, 64).tolist()))
    assert mine == sorted(map(tuple, original.images.reshape(1797, 64).astype(int).tolist()))

    table, source = load("breast_cancer"), load_breast_cancer()
    assert table.encoding is not None
    rows = [*table.encoding.decode(table.x_train), *table.encoding.decode(table.x_test)]
    decoded = np.array([[float(value) for value in row.values()] for row in rows])
    distance = np.abs(decoded[:, None] - source.data[None]) / source.data.max(0)
    nearest = distance.max(2).argmin(1)
    assert distance.max(2).min(1).max() < 1e-6
    assert sorted(nearest) == list(range(569))
    assert np.array_equal(source.target[nearest], np.concatenate([table.y_train, table.y_test]))


def test_the_tool_makes_the_same_arrays_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("fashion_mnist")
    for part, x, y in (("train", data.x_train, data.y_train), ("t10k", data.x_test, data.y_test)):
        pictures = struct.pack(">IIII", 0x0803, len(x), 28, 28) + x.tobytes()
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(pictures)
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x0801, len(y)) + bytes(y.tolist()))
    licence = (BUNDLED / "fashion_mnist.LICENSE.txt").read_text(encoding="utf-8").split("tech.zalando.com\n\n")[1]
    debian = "".join(f" {line or '.'}\n" for line in licence.splitlines())
    (tmp_path / "copyright").write_text(f"Files: *\nLicense: Expat\n\nLicense: Expat\n{debian}", encoding="utf-8")
    monkeypatch.setattr(
        sys, "argv", ["bundle_data.py", *map(str, (tmp_path, tmp_path / "copyright", tmp_path / "out"))]
    )
    runpy.run_path(str(TOOL), run_name="__main__")
    for file in sorted(path.name for path in BUNDLED.iterdir() if path.name.split(".")[0] in NAMES):
        made, bundled = tmp_path / "out" / file, BUNDLED / file
        if file.endswith(".txt"):
            assert made.read_text(encoding="utf-8") == bundled.read_text(encoding="utf-8")
            continue
        with np.load(made, allow_pickle=False) as a, np.load(bundled, allow_pickle=False) as b:
            assert a.files == b.files
            for key in set(a.files) - {"index_train", "index_test"}:
                assert np.array_equal(a[key], b[key])
