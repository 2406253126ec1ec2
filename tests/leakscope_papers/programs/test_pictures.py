"""Pictures of a program's row: the first client's, each beside its guess; read as untrusted input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.core.types import Outcome, Reconstruction, make_batch
from leakscope.metrics import score
from leakscope_papers.programs.pictures import (
    FOLDER,
    NAMES,
    Shown,
    first_client,
    keep_pictures,
    read_pictures,
)


def shown(n: int = 2) -> Shown:
    pictures = torch.arange(n * 16, dtype=torch.uint8).reshape(n, 1, 4, 4)
    return Shown(pictures, pictures + 1, torch.arange(n, dtype=torch.float32), torch.ones(n, dtype=torch.uint8))


def test_pictures_come_back_as_they_were_kept(tmp_path: Path) -> None:
    keep_pictures(tmp_path, "sme R=1/..", shown())
    found = read_pictures(tmp_path, "sme R=1/..")
    assert found is not None
    for name in NAMES:
        assert torch.equal(getattr(found, name), getattr(shown(), name))
    assert read_pictures(tmp_path, "another") is None


@pytest.mark.parametrize(
    "change", [{"guess": torch.zeros(2, 1, 4, 4)}, {"psnr": torch.zeros(3)}, {"truth": torch.zeros(2)}]
)
def test_what_are_no_pictures_of_a_row_is_refused(tmp_path: Path, change: dict[str, torch.Tensor]) -> None:
    own = {name: getattr(shown(), name) for name in NAMES} | change
    keep_pictures(tmp_path, "a", Shown(**own))
    with pytest.raises(InputError, match="holds no pictures"):
        read_pictures(tmp_path, "a")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    keep_pictures(tmp_path, "a", shown())
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(b"no pictures")
    with pytest.raises(InputError, match="holds no pictures"):
        read_pictures(tmp_path, "a")


def test_each_picture_stands_beside_the_guess_it_was_scored_against() -> None:
    truth = torch.rand(2, 3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    turned = truth.flip(1)  # the attack found them all, in another order
    batch = make_batch(truth, torch.arange(3).expand(2, 3), classes=3)
    none = torch.zeros(2, dtype=torch.int64)
    made = Reconstruction(
        turned, batch.labels.flip(1), turned, none.float(), none, none, none + int(Outcome.EXHAUSTED),
        none[:, None].float(), none[:, None], turned[:, None], none[:, None],
    )  # fmt: skip
    found = first_client(batch, made, score(batch.inputs, batch.labels, made.inputs, made.labels))
    assert torch.equal(found.truth, found.guess)
    assert (found.truth / 255 - truth[0]).abs().amax() <= 0.51 / 255
    assert found.recovered.tolist() == [1, 1, 1]
