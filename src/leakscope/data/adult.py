"""UCI Adult (census income), from one .csv with a header or from UCI's pair of files."""

from __future__ import annotations

from pathlib import Path

from leakscope.data.csv_table import parse_rows, read_csv, read_text
from leakscope.data.dataset import Dataset
from leakscope.data.table import encode_table

TARGET, SPLIT = "income", "split"
HEADER = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", TARGET,
)  # fmt: skip


def read_adult(path: Path | str) -> Dataset:
    """Return Adult from adult.csv(.gz) with `HEADER` and `split`, or from a folder with UCI's adult.data and adult.test."""
    path = Path(path)
    if not path.is_dir():
        return read_csv(path, target=TARGET, split=SPLIT, name="adult")
    columns: dict[str, list[str]] = {title: [] for title in (*HEADER, SPLIT)}
    for file, part in (("adult.data", "train"), ("adult.test", "test")):
        where = path / file
        lines = [line for line in read_text(where).splitlines() if not line.startswith("|")]  # a remark
        rows = parse_rows(str(where), "\n".join(lines), HEADER)
        rows[TARGET] = [value.removesuffix(".") for value in rows[TARGET]]  # in adult.test
        rows[SPLIT] = [part] * len(rows[TARGET])
        for title, values in rows.items():
            columns[title].extend(values)
    return encode_table(str(path), columns, target=TARGET, split=SPLIT, categorical=(), name="adult")
