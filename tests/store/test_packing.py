"""What is packed is what the safetensors library reads, and nothing that a capture may not hold."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from leakscope.core.errors import InputError
from leakscope.store.captures import NAMES, pack
from leakscope.store.untrusted import BYTES

TYPES = [getattr(torch, name) for name in NAMES]
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=40)
@given(
    described=st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
        st.tuples(st.sampled_from(TYPES), SHAPES),
        max_size=5,
    ),
    seed=st.integers(0, 99),
)
def test_the_library_reads_what_was_packed(described: dict[str, tuple[torch.dtype, list[int]]], seed: int) -> None:
    described.pop("__metadata__", None)
    generator = torch.Generator().manual_seed(seed)
    tree = {name: (20 * torch.randn(shape, generator=generator)).to(kind) for name, (kind, shape) in described.items()}
    packed = pack(tree, "here")
    made = load(packed.data)
    assert set(made) == set(tree)
    for name, value in tree.items():
        assert made[name].dtype == value.dtype
        assert made[name].shape == value.shape
        assert torch.equal(made[name], value)
    assert packed.sha256 == hashlib.sha256(packed.data).hexdigest()
    assert packed.shapes == {name: list(value.shape) for name, value in tree.items()}
    assert int.from_bytes(packed.data[:8], "little") % 8 == 0  # the numbers lie aligned


def test_columns_first_and_gradients_are_packed_as_they_read() -> None:
    value = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    assert torch.equal(load(pack({"x": value}, "here").data)["x"], value.detach())


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(kind: torch.dtype, bad: float) -> None:
    with pytest.raises(InputError, match=r"sent 'x' .*NaN"):
        pack({"a": torch.ones(3), "x": torch.tensor([1.0, bad]).to(kind)}, "sent")


@pytest.mark.parametrize("kind", [torch.complex64, torch.float8_e5m2])
def test_types_that_no_capture_holds_are_refused(kind: torch.dtype) -> None:
    with pytest.raises(InputError, match="capture holds float64"):
        pack({"x": torch.zeros(2).to(kind)}, "sent")


def test_whatever_is_packed_can_be_read() -> None:
    assert set(NAMES.values()) == set(BYTES)
