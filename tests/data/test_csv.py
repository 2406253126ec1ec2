from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.data.adult import HEADER, read_adult
from leakscope.data.csv_table import read_csv

TABLE = """\
age,work,hours,code,income,split
39,State-gov,40,1,<=50K,train
50,?,13.5,2,>50K,train
38,Private,40,1,<=50K,test
"""
ADULT_DATA = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, ?, <=50K
50, Private, 83311, HS-grad, 9, Divorced, Exec-managerial, Husband, Black, Female, 0, 0, 13, Cuba, >50K

"""
ADULT_TEST = """\
|1x3 Cross validator
25, ?, 226802, 11th, 7, Never-married, ?, Own-child, Black, Male, 0, 0, 40, Cuba, <=50K.

"""


def write(folder: Path | str, text: str, name: str = "toy.csv") -> Path:
    path = Path(folder) / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["toy.csv", "toy.csv.gz"])
def test_numbers_are_scaled_and_words_are_one_hot(tmp_path: Path, name: str) -> None:
    data = read_csv(write(tmp_path, TABLE, name), target="income")
    assert (data.name, data.kind, data.input_shape) == ("toy", "table", (6,))
    assert data.class_names == ("<=50K", ">50K")
    assert data.y_train.tolist() == [0, 1]
    assert data.y_test.tolist() == [0]
    by_hand = [
        [(39 - 38) / (50 - 38), 0, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    assert np.array_equal(data.x_train, np.array(by_hand, dtype=np.float32))


def test_rows_come_back(tmp_path: Path) -> None:
    data = read_csv(write(tmp_path, TABLE), target="income")
    assert data.encoding is not None
    assert data.encoding.decode(data.x_train) == [
        {"age": 39, "work": "State-gov", "hours": 40.0, "code": 1},
        {"age": 50, "work": "?", "hours": 13.5, "code": 2},
    ]


def test_numbers_can_be_codes_and_the_split_another_column(tmp_path: Path) -> None:
    data = read_csv(write(tmp_path, TABLE), target="income", categorical=["code"])
    assert data.input_shape == (7,)
    renamed = TABLE.replace("split", "part")
    assert read_csv(write(tmp_path, renamed), target="income", split="part").size("test") == 1


def test_without_a_split_every_row_is_training(tmp_path: Path) -> None:
    text = "\n".join(line.rsplit(",", 1)[0] for line in TABLE.splitlines())
    data = read_csv(write(tmp_path, text), target="income")
    assert (data.size("train"), data.size("test")) == (3, 0)


def test_quotes_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "\ufeffa,b\n\n" + '"x, y", 1\n z ,0\n\n'
    data = read_csv(write(tmp_path, text), target="b")
    assert data.encoding is not None
    assert data.encoding.decode(data.x_train) == [{"a": "x, y"}, {"a": "z"}]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "is empty"),
        ("age,income\n", "has no rows"),
        ("income\nyes\n", "except 'income'"),
        ("age,age,income\n1,2,y\n", "every column once"),
        ("age,,income\n1,2,y\n", "every column once"),
        ("age,income\n1,y\n1\n", "line 3 .*has 1"),
        ("age,income\n1,y\n,n\n", "'age' .*row 2"),
        ("age,income\n1,y\nnan,n\n", "'age' .*row 2 is nan"),
        ("age,income\n1,y\n-inf,n\n", "'age' .*row 2 is -inf"),
        ("age,income\n1,y\n1e999,n\n", "'age' .*finite"),
        ("age,income,split\n1,y,train\n1,y,valid\n", "got 'valid'"),
        ('age,income\n"1,y\n', "is not comma-separated"),
        ("id,income\n" + "".join(f"u{i},y\n" for i in range(1001)), "has 1001"),
    ],
)
def test_tables_that_break_a_rule(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rf"toy.csv: .*{rule}") as caught:
        read_csv(write(tmp_path, text), target="income")
    assert "\n" not in str(caught.value)


def test_unknown_columns_list_the_known(tmp_path: Path) -> None:
    path = write(tmp_path, TABLE)
    with pytest.raises(InputError, match=r"'incom'.*'income'"):
        read_csv(path, target="incom")
    with pytest.raises(InputError, match=r"'cod'.*'code'"):
        read_csv(path, target="income", categorical=["cod"])
    with pytest.raises(InputError, match="no such file"):
        read_csv(tmp_path / "nothing.csv", target="income")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "toy.csv"
    path.write_bytes(b"a,b\n\xff,1\n")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_csv(path, target="b")


@settings(deadline=None)
@given(data=st.data(), packed=st.booleans())
def test_a_truncated_table_is_an_input_error_or_shorter(data: st.DataObject, packed: bool) -> None:
    with TemporaryDirectory() as folder:
        path = write(folder, TABLE, "toy.csv.gz" if packed else "toy.csv")
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
        message, rows = "", 0
        try:
            short = read_csv(path, target="income")
            rows = short.size("train") + short.size("test")
        except InputError as error:
            message = str(error)
        assert "\n" not in message
        assert message if packed else rows < 3


def test_adult_from_the_files_of_uci_equals_adult_from_one_table(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    write(tmp_path / "adult", ADULT_DATA, "adult.data")
    write(tmp_path / "adult", ADULT_TEST, "adult.test")
    lines = [",".join((*HEADER, "split"))]
    lines += [f"{line.replace(', ', ',')},train" for line in ADULT_DATA.split("\n") if line]
    lines += [f"{line.replace(', ', ',')[:-1]},test" for line in ADULT_TEST.split("\n")[1:] if line]
    pair, single = read_adult(tmp_path / "adult"), read_adult(write(tmp_path, "\n".join(lines), "adult.csv.gz"))
    assert pair.encoding == single.encoding
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(pair, name), getattr(single, name))
    assert pair.class_names == ("<=50K", ">50K")


def test_adult_with_a_file_missing(tmp_path: Path) -> None:
    write(tmp_path, ADULT_DATA, "adult.data")
    with pytest.raises(InputError, match=r"adult.test: no such"):
        read_adult(tmp_path)
