"""The state of a chunk on disk comes back as it was, and saving it takes no second copy of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from leakscope.kernels import checkpoint
from leakscope.kernels.checkpoint import Checkpoint


def test_a_state_is_saved_without_a_copy_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.arange(4096.0)
    state = {
        "whole": whole,
        "again": whole,
        "part": whole[10:20],
        "wide": torch.ones(1).expand(4),
        "turned": torch.rand(3, 2).T,
    }
    file = Checkpoint(tmp_path / "state.safetensors", "a run")
    written: dict[str, int] = {}

    def save(tensors: dict[str, torch.Tensor], *rest: Any, **given: Any) -> None:
        written.update({name: value.data_ptr() for name, value in tensors.items()})
        save_file(tensors, *rest, **given)

    monkeypatch.setattr(checkpoint, "save_file", save)
    file.save(state, tick=3)
    assert written["whole"] == whole.data_ptr()
    assert len(set(written.values())) == len(state)
    saved = file.load()
    assert saved is not None
    assert saved.tick == 3
    assert all(torch.equal(saved.tensors[name], value) for name, value in state.items())
