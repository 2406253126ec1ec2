from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leakscope.core.errors import InputError
from leakscope.data.encoding import Category, Encoding, Number, Row

ENCODING = Encoding(
    (
        Number("age", 17, 90, whole=True),
        Category("work", ("?", "private", "state")),
        Number("weight", 12285, 1490400, whole=True),
        Number("same", 3, 3, whole=True),
        Number("share", -1.5, 2.5),
        Category("sex", ("Female", "Male")),
    )
)
ROWS = st.fixed_dictionaries(
    {
        "age": st.integers(17, 90),
        "work": st.sampled_from(["?", "private", "state"]),
        "weight": st.integers(12285, 1490400),
        "same": st.just(3),
        "share": st.floats(-1.5, 2.5),
        "sex": st.sampled_from(["Female", "Male"]),
    }
)


@settings(deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=5))
def test_decode_undoes_encode(rows: list[Row]) -> None:
    encoded = ENCODING.encode(rows)
    assert encoded.dtype == np.float32
    assert encoded.shape == (len(rows), ENCODING.width)
    assert encoded.min() >= 0
    assert encoded.max() <= 1
    for back, row in zip(ENCODING.decode(encoded), rows, strict=True):
        assert back.pop("share") == pytest.approx(row["share"], abs=1e-6)
        assert back == {name: value for name, value in row.items() if name != "share"}


@settings(deadline=None)
@given(x=hnp.arrays(np.float32, (3, ENCODING.width), elements=st.floats(width=32)))
def test_any_real_vector_decodes_to_a_row_that_can_be_encoded(x: np.ndarray) -> None:
    rows = ENCODING.decode(x)
    again = ENCODING.encode(rows)
    for twice, row in zip(ENCODING.decode(again), rows, strict=True):
        assert twice.pop("share") == pytest.approx(row.pop("share"), abs=1e-6)
        assert twice == row


@settings(deadline=None)
@given(x=hnp.arrays(np.float64, (2, ENCODING.width), elements=st.floats(0, 1)))
def test_a_word_is_the_largest_entry_of_its_group(x: np.ndarray) -> None:
    place = ENCODING.slices["work"]
    for row, values in zip(ENCODING.decode(x), x, strict=True):
        group = values[place].tolist()
        assert row["work"] == ("?", "private", "state")[group.index(max(group))]


def test_slices_cover_the_row_in_order() -> None:
    covered = [i for part in ENCODING.slices.values() for i in range(part.start, part.stop)]
    assert covered == list(range(ENCODING.width))
    assert list(ENCODING.slices) == [column.name for column in ENCODING.columns]


def test_tensors_decode_like_arrays() -> None:
    x = torch.rand(2, ENCODING.width, requires_grad=True)
    assert ENCODING.decode(x) == ENCODING.decode(x.detach().numpy())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"age": 16}, r"'age' .*got 16"),
        ({"age": "old"}, "'age' .*numbers"),
        ({"age": float("nan")}, "'age' must lie"),
        ({"work": "none"}, "'work' .*private"),
    ],
)
def test_values_that_no_column_knows(change: Row, rule: str) -> None:
    row = {"age": 20, "work": "?", "weight": 20000, "same": 3, "share": 0.0, "sex": "Male", **change}
    with pytest.raises(InputError, match=rule):
        ENCODING.encode([row])


def test_missing_columns_and_wrong_widths() -> None:
    with pytest.raises(InputError, match="column 'age'"):
        ENCODING.encode([{"work": "?"}])
    for shape in [(ENCODING.width,), (1, 2)]:
        with pytest.raises(InputError, match=f"N x {ENCODING.width}"):
            ENCODING.decode(np.zeros(shape))
