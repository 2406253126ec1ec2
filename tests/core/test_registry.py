"""Looking names up: what is there comes back, what is not names its neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.errors import InputError, UnknownNameError
from leakscope.core.registry import lookup, summary


@given(table=st.dictionaries(st.text(), st.integers(), min_size=1))
def test_every_name_of_a_table_is_found(table: dict[str, int]) -> None:
    assert all(lookup(table, name, "thing") == value for name, value in table.items())


@given(table=st.dictionaries(st.text(), st.integers()), name=st.text())
def test_every_other_name_is_refused_with_all_that_are_known(table: dict[str, int], name: str) -> None:
    if name in table:
        return
    with pytest.raises(UnknownNameError) as caught:
        lookup(table, name, "thing")
    message = str(caught.value)
    assert message.startswith(f"unknown thing {name!r}")
    assert message.endswith(f"(known: {', '.join(sorted(table))})")


def test_near_names_are_offered_and_far_ones_are_not() -> None:
    table = {"cosine": 1, "euclid": 2, "sign": 3}
    with pytest.raises(UnknownNameError, match=r"'cosin'.*'cosine'"):
        lookup(table, "cosin", "objective")
    with pytest.raises(UnknownNameError) as caught:
        lookup(table, "zzzz", "objective")
    assert "did you mean" not in str(caught.value)


def test_a_false_value_is_still_found() -> None:
    assert lookup({"none": None}, "none", "thing") is None


def test_the_error_is_one_for_the_terminal() -> None:
    assert issubclass(UnknownNameError, InputError)
    assert issubclass(InputError, ValueError)
    with pytest.raises(UnknownNameError) as caught:
        lookup({"a": 1}, "b\nc", "thing")
    assert "\n" not in str(caught.value)


def test_summary_is_the_first_line_without_its_stop() -> None:
    def piece() -> None:
        """Return nothing.

        And say why.
        """

    class Bare:
        __doc__ = None

    assert summary(piece) == "Return nothing"
    assert summary(Bare) == ""
