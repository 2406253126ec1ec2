from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from leakscope.core.errors import InputError
from leakscope.data.folder import read_folder
from leakscope.data.picture import read_image

RED, BLUE = (255, 0, 0), (0, 0, 255)


def halves(width: int, height: int) -> Image.Image:
    """Return a picture that is red on the left and blue on the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image


@settings(deadline=None)
@given(pixels=hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))))
def test_a_picture_of_the_right_shape_comes_back_pixel_for_pixel(pixels: np.ndarray[Any, Any]) -> None:
    height, width, _ = pixels.shape
    with TemporaryDirectory() as folder:
        path = Path(folder) / "p.png"
        Image.fromarray(pixels).save(path)
        taken = read_image(path, (3, height, width))
    assert taken.dtype == torch.float32
    assert torch.equal(taken, torch.from_numpy(pixels.transpose(2, 0, 1).copy()) / 255)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8), (3, 5, 9), (1, 40, 3), (3, 100, 100)])
@pytest.mark.parametrize("size", [(16, 16), (31, 7), (6, 50)])
def test_the_shape_is_the_one_asked_for(tmp_path: Path, shape: tuple[int, int, int], size: tuple[int, int]) -> None:
    path = tmp_path / "p.jpg"
    halves(*size).save(path)
    taken = read_image(str(path), shape)
    assert taken.shape == shape
    assert taken.min() >= 0
    assert taken.max() <= 1


def test_the_crop_is_centred(tmp_path: Path) -> None:
    image = Image.new("RGB", (30, 10), RED)
    image.paste(BLUE, (10, 0, 20, 10))
    image.save(tmp_path / "p.png")
    assert torch.equal(read_image(tmp_path / "p.png", (3, 10, 10))[2], torch.ones(10, 10))


def test_the_orientation_of_the_camera_is_honoured(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown after a quarter turn clockwise: left becomes top
    halves(16, 16).save(tmp_path / "p.png", exif=turned)
    taken = read_image(tmp_path / "p.png", (3, 16, 16))
    assert torch.equal(taken[0, :8], torch.ones(8, 16))
    assert torch.equal(taken[2, 8:], torch.ones(8, 16))


def test_odd_kinds_of_pixels(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(path)
    assert torch.equal(read_image(path, (3, 4, 4)), torch.ones(3, 4, 4))
    Image.fromarray(np.full((4, 4), 65535, np.uint16)).save(path)
    assert torch.equal(read_image(path, (1, 4, 4)), torch.ones(1, 4, 4))
    Image.fromarray(np.full((4, 4), 128 * 257, np.uint16)).save(path)
    assert torch.equal(read_image(path, (3, 4, 4)), torch.full((3, 4, 4), 128 / 255))
    Image.new("1", (4, 4), 1).save(path)
    assert torch.equal(read_image(path, (1, 4, 4)), torch.ones(1, 4, 4))
    halves(4, 4).convert("P").save(path)
    assert read_image(path, (3, 4, 4))[0, 0].tolist() == [1, 1, 0, 0]
    Image.new("CMYK", (4, 4)).save(tmp_path / "p.jpg")
    assert read_image(tmp_path / "p.jpg", (3, 4, 4)).shape == (3, 4, 4)
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "p.tif")
    with pytest.raises(InputError, match="8 bits"):
        read_image(tmp_path / "p.tif", (1, 4, 4))


@pytest.mark.filterwarnings("ignore:::PIL")
@settings(deadline=None)
@given(data=st.data(), suffix=st.sampled_from(["png", "jpg", "gif", "bmp", "webp", "tif", "ppm"]))
def test_a_truncated_picture_never_raises_anything_else(data: st.DataObject, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"p.{suffix}"
        halves(12, 12).save(path)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:cut])
        message = ""
        try:
            read_image(path, (3, 12, 12))
        except InputError as error:
            message = str(error)
    assert "\n" not in message
    assert str(path) in message if message else cut > len(whole) // 4  # only what follows the pixels is gone


def test_pictures_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_image(tmp_path / "nothing.png", (3, 4, 4))
    with pytest.raises(InputError, match="a directory"):
        read_image(tmp_path, (3, 4, 4))
    halves(4, 4).save(tmp_path / "p.png")
    for shape in [(2, 4, 4), (3, 0, 4), (4, 4)]:
        with pytest.raises(InputError, match="1 or 3, height, width"):
            read_image(tmp_path / "p.png", shape)  # type: ignore[arg-type]


def plant(folder: Path, *names: str) -> None:
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / name)


def test_one_subfolder_a_class_in_sorted_order(tmp_path: Path) -> None:
    plant(tmp_path, "dog/b.png", "dog/a.PNG", "cat/z.png", ".hidden/x.png")
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    data = read_folder(tmp_path, shape=(3, 8, 8))
    assert data.class_names == ("cat", "dog")
    assert data.y_train.tolist() == [0, 1, 1]
    assert data.x_train[:, 0, 0, 0].tolist() == [2, 1, 0]
    assert data.size("test") == 0
    assert data.name == tmp_path.name


def test_loose_pictures_are_one_class(tmp_path: Path) -> None:
    plant(tmp_path, "b.png", "a.png")
    data = read_folder(tmp_path, shape=(1, 4, 6), name="mine")
    assert (data.name, data.class_names, data.input_shape) == ("mine", (tmp_path.name,), (1, 4, 6))
    assert data.y_train.tolist() == [0, 0]


def test_train_and_test_are_parts(tmp_path: Path) -> None:
    plant(tmp_path / "by_class", "train/dog/a.png", "train/cat/a.png", "test/dog/b.png")
    data = read_folder(tmp_path / "by_class", shape=(3, 8, 8))
    assert data.class_names == ("cat", "dog")
    assert data.y_train.tolist() == [0, 1]
    assert data.y_test.tolist() == [1]
    plant(tmp_path / "flat", "train/a.png", "test/b.png", "test/c.png")
    flat = read_folder(tmp_path / "flat", shape=(3, 8, 8))
    assert (flat.class_names, flat.size("train"), flat.size("test")) == (("flat",), 1, 2)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no pictures"):
        read_folder(tmp_path, shape=(3, 8, 8))
    with pytest.raises(InputError, match="no such directory"):
        read_folder(tmp_path / "nothing", shape=(3, 8, 8))
    plant(tmp_path, "dog/b.png")
    with pytest.raises(InputError, match="1 or 3"):
        read_folder(tmp_path, shape=(3, -8, 8))
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match=r"cat: .*no pictures"):
        read_folder(tmp_path, shape=(3, 8, 8))
    plant(tmp_path, "loose.png")
    with pytest.raises(InputError, match="not both"):
        read_folder(tmp_path, shape=(3, 8, 8))
    (tmp_path / "loose.png").unlink()
    (tmp_path / "cat" / "bad.png").write_bytes(b"hello")
    with pytest.raises(InputError, match=r"bad.png: .*picture"):
        read_folder(tmp_path, shape=(3, 8, 8))
