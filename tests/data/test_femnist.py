"""FEMNIST from LEAF's JSON and from the hubs' parquet, in files that the test writes."""

from __future__ import annotations

import builtins
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakscope.core.errors import InputError
from leakscope.data import Dataset, load, read_femnist, using, write_femnist_parquet, write_leaf

Write = Callable[[Dataset, Path], None]


def letters(writers: int = 3, each: int = 4) -> Dataset:
    numbers = np.random.default_rng(0)
    x = numbers.integers(0, 256, (writers * each, 1, 28, 28), np.uint8)
    y = numbers.integers(0, 62, writers * each)
    groups = np.repeat(np.arange(writers), each)
    return Dataset(
        name="toy", kind="image", x_train=x, y_train=y, x_test=x[::2], y_test=y[::2],
        class_names=tuple(map(str, range(62))), groups_train=groups, groups_test=groups[::2],
    )  # fmt: skip


@pytest.mark.parametrize("write", [write_leaf, write_femnist_parquet])
def test_what_is_written_is_read_back(tmp_path: Path, write: Write) -> None:
    data = letters()
    write(data, tmp_path)
    read = read_femnist(tmp_path)
    for name in ("x_train", "y_train", "x_test", "y_test", "groups_train", "groups_test"):
        np.testing.assert_array_equal(getattr(read, name), getattr(data, name))
    assert read.class_names[10] == "A"
    assert read.class_names[61] == "z"


def test_a_json_as_leaf_writes_it(tmp_path: Path) -> None:
    """Written by hand: 784 floats an image, 1 is white paper; writers keep their order."""
    white, black = [1.0] * 784, [0.0] * 784
    user_data = {"f1": {"x": [white] * 9 + [black], "y": list(range(10))}, "f0": {"x": [black], "y": [61]}}
    content = {"users": ["f1", "f0"], "num_samples": [10, 1], "user_data": user_data}
    path = tmp_path / "all_data_0_niid_0_keep_0.json"
    path.write_text(json.dumps(content))
    data = read_femnist(path)
    assert data.y_train.tolist() == [*range(9), 61]
    assert data.groups_train is not None
    assert data.groups_train.tolist() == [1] * 9 + [0]
    assert data.y_test.tolist() == [9]  # the tenth image of a writer
    assert data.x_train[0].min() == 255
    assert data.x_test.max() == 0


def test_a_parquet_as_the_hubs_carry_it(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    png = io.BytesIO()
    Image.new("L", (28, 28), 7).save(png, "PNG")
    rows = {
        "image": [{"bytes": png.getvalue(), "path": "a.png"}] * 2,
        "writer_id": ["f0000_14", "f0001_41"],
        "hsf_id": [0, 0],
        "character": [53, 28],
    }
    (tmp_path / "data").mkdir()
    parquet.write_table(arrow.table(rows), tmp_path / "data" / "train-00000-of-00002.parquet")
    parquet.write_table(arrow.table(rows), tmp_path / "data" / "train-00001-of-00002.parquet")
    data = read_femnist(tmp_path)
    assert data.y_train.tolist() == [53, 28, 53, 28]
    assert data.groups_train is not None
    assert data.groups_train.tolist() == [0, 1, 0, 1]
    assert (data.x_train == 7).all()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"user_data": {"f0": {"x": [[1, 2]], "y": [0]}}}',
        '{"user_data": {"f0": {"x": [[0.5]], "y": [0, 1]}}}',
        '{"user_data": {"f0": 3}}',
        json.dumps({"user_data": {"f0": {"x": [[2.0] * 784], "y": [0]}}}),
        json.dumps({"user_data": {"f0": {"x": [[1.0] * 784], "y": [62]}}}),
        json.dumps({"user_data": {"f0": {"x": [[1.0] * 784], "y": ["a"]}}}),
    ],
)
def test_a_broken_json_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError) as raised:
        read_femnist(path)
    assert len(str(raised.value).splitlines()) == 1


def test_a_broken_parquet_and_no_file_at_all(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    for path in (tmp_path / "x.parquet", tmp_path / "none", tmp_path / "x.txt"):
        with pytest.raises(InputError):
            read_femnist(path)


def test_without_pyarrow_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_femnist_parquet(letters(), tmp_path)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"leakscope\[export\]"):
        read_femnist(tmp_path)


def test_a_set_is_loaded_from_the_users_copy_until_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LEAKSCOPE_DATA", "LEAKSCOPE_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path / "nothing" if variable == "LEAKSCOPE_CACHE" else tmp_path))
    write_leaf(letters(), tmp_path / "mine")
    with using({"femnist": tmp_path / "mine"}):
        data = load("femnist")
        assert (data.name, len(data.y_train), data.statistics.mean) == ("femnist", 12, (0.96424,))
    with pytest.raises(InputError):
        load("femnist")
    for wrong in ({"femnist": tmp_path / "no"}, {"femnist": tmp_path / "x.txt"}, {"femist": tmp_path}):
        with pytest.raises(InputError), using(wrong):
            pass
