"""`leakscope policy`: a PNG of every step, the table, clear mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.core.errors import InputError
from leakscope.data import load
from leakscope.defences.on_data.applying import to_bytes

RUN = CliRunner()


def test_list_names_all_fifty() -> None:
    done = RUN.invoke(app, ["policy", "list"])
    assert done.exit_code == 0
    for words in ("translate_x", "+-0.4532", "equalize", "solarize 256", "49"):
        assert words in done.stdout


def test_show_draws_the_pictures_and_each_step(tmp_path: Path) -> None:
    out = tmp_path / "policy.png"
    done = RUN.invoke(app, ["policy", "show", "3-1-7+0", "--images", "2", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert re.search(r"^3-1-7: translate_x \+-0\.4532 .* contrast \+-0\.3333", done.stdout, re.MULTILINE)
    sheet = np.asarray(Image.open(out))
    assert sheet.shape == (2 * 36 + 8 + 4 * 120, 8 + 4 * 120, 3)
    first = to_bytes(load("fashion_mnist").pictures("test", 0))[0].numpy()
    corner = sheet[36 : 36 + 112, 8 : 8 + 112, 0]
    assert np.array_equal(corner[2::4, 2::4], first)  # four times as large
    assert np.array_equal(sheet[36 + 2 * 120 + 36 :, 128:240, 0][2:112:4, 2::4], 255 - first)  # policy 0 inverts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["3-1-77"], "0..49"),
        (["three"], "three indices"),
        (["none"], "no step"),
        (["3", "--images", "0"], "--images .*1..64"),
        (["3", "--data", "breast_cancer"], "holds tables"),
        (["3", "--out", "/nowhere/at/all.png"], "cannot write"),
    ],
)
def test_mistakes_get_a_clear_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = RUN.invoke(app, ["policy", "show", *arguments])
    assert isinstance(done.exception, InputError)
    assert re.search(words, str(done.exception))
