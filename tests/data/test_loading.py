from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from leakscope.core.errors import InputError
from leakscope.data.loading import load, locate
from leakscope.data.sources import SOURCES


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache; no data directory is set."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LEAKSCOPE_CACHE", str(folder))
    monkeypatch.delenv("LEAKSCOPE_DATA", raising=False)
    return folder


def plant(folder: Path, name: str, pixel: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = np.full((2, 28, 28), pixel, np.uint8), np.array([0, 1], dtype=np.uint8)
    path = folder / f"{name}.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def plant_idx(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        pictures = gzip.compress(struct.pack(">IIII", 0x0803, 1, 2, 2) + bytes(4))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(pictures)
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">II", 0x0801, 1) + bytes(1)))


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_missing_set_says_what_to_do(name: str, cache: Path, tmp_path: Path) -> None:
    source = SOURCES[name]
    if source.bundled or source.make is not None:
        assert load(name).name == name
    else:
        with pytest.raises(InputError, match="set LEAKSCOPE_DATA") as caught:
            load(name)
        assert str(cache) in str(caught.value)
        assert (f"`leakscope data fetch {name}`" in str(caught.value)) == bool(source.downloads)
        assert "\n" not in str(caught.value)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=f"'{name}' .*empty"):
        load(name, empty)


def test_the_data_directory_comes_before_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(cache, "mnist", 1)
    assert load("mnist").x_train[0, 0, 0, 0] == 1
    plant(tmp_path / "data", "mnist", 2)
    monkeypatch.setenv("LEAKSCOPE_DATA", str(tmp_path / "data"))
    data = load("mnist")
    assert data.x_train[0, 0, 0, 0] == 2
    assert data.statistics == SOURCES["mnist"].statistics
    (tmp_path / "data" / "mnist.npz").unlink()
    assert load("mnist").x_train[0, 0, 0, 0] == 1


def test_a_directory_that_is_given_is_the_only_place(cache: Path, tmp_path: Path) -> None:
    plant(cache, "mnist", 1)
    plant(tmp_path / "data", "mnist", 2)
    assert load("mnist", tmp_path / "data").x_train[0, 0, 0, 0] == 2
    assert load("mnist", str(tmp_path / "data")).x_train[0, 0, 0, 0] == 2
    with pytest.raises(InputError, match="not found"):
        load("svhn", tmp_path / "data")


def test_the_bundled_one_is_used_unless_a_directory_is_given(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, "fashion_mnist")
    monkeypatch.setenv("LEAKSCOPE_DATA", str(tmp_path))
    assert load("fashion_mnist").size("train") == 3000
    assert load("fashion_mnist", tmp_path).size("train") == 2


def test_directories_that_do_not_exist_are_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"data directory .*nowhere"):
        load("mnist", tmp_path / "nowhere")
    monkeypatch.setenv("LEAKSCOPE_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"LEAKSCOPE_DATA .*gone"):
        load("mnist")
    assert load("digits").size("test") == 360
    monkeypatch.setenv("LEAKSCOPE_DATA", "")
    with pytest.raises(InputError, match="not found in"):
        load("mnist")


def test_unknown_names_list_near_ones(cache: Path) -> None:
    with pytest.raises(InputError, match=r"data set 'cifar'.*'cifar10'"):
        load("cifar")


def test_fetched_files_are_found_once_they_are_complete(cache: Path) -> None:
    plant_idx(cache / "mnist")
    data = load("mnist")
    assert (data.name, data.input_shape, data.size("train")) == ("mnist", (1, 2, 2), 1)
    (cache / "mnist" / "t10k-labels-idx1-ubyte.gz").rename(cache / "mnist" / "t10k-labels-idx1-ubyte.gz.part")
    assert locate("mnist") is None


def test_the_layout_of_torchvision_is_found(cache: Path, tmp_path: Path) -> None:
    plant_idx(tmp_path / "FashionMNIST" / "raw")
    assert load("fashion_mnist_full", tmp_path).class_names[0] == "T-shirt/top"


def test_the_python_version_of_cifar_is_refused_with_a_reason(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").touch()
    with pytest.raises(InputError, match="binary version"):
        load("cifar10", tmp_path)


def test_the_default_cache_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEAKSCOPE_CACHE", raising=False)
    monkeypatch.delenv("LEAKSCOPE_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    plant(tmp_path / ".cache" / "leakscope", "mnist", 3)
    assert load("mnist").x_train[0, 0, 0, 0] == 3
