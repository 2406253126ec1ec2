"""Make the data files that ship with the package, from the official Fashion-MNIST files and scikit-learn.

    python tools/bundle_data.py FASHION_FOLDER COPYRIGHT_FILE OUTPUT_FOLDER

FASHION_FOLDER holds the four official IDX files; Debian's package `dataset-fashion-mnist` has them, and COPYRIGHT_FILE
is that package's. The same input gives the same bytes. Run it with src on the Python path.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

from leakscope.data.idx import read_idx_folder
from leakscope.data.sources import FASHION

TRAIN_A_CLASS, TEST_A_CLASS = 300, 100
ATTRIBUTION = """{title}

By {authors} ({year}), UCI Machine Learning Repository,
https://doi.org/{doi}

Licensed under the Creative Commons Attribution 4.0 International licence (CC BY 4.0):
https://creativecommons.org/licenses/by/4.0/legalcode

Taken from the copy in scikit-learn (https://scikit-learn.org). Changes: {changes}
The creators of the data do not endorse this use of it. It is given as is, without warranty.
"""


def first_of_each_class(y: npt.NDArray[Any], number: int) -> npt.NDArray[np.int64]:
    """Return the positions of the first `number` examples of each class, in the order of the file."""
    return np.sort(np.concatenate([np.flatnonzero(y == label)[:number] for label in np.unique(y)]))


def bundle_fashion(folder: Path, copyright_file: Path, output: Path) -> None:
    """Write a balanced part of Fashion-MNIST and its licence."""
    full = read_idx_folder(folder, class_names=FASHION)
    train = first_of_each_class(full.y_train, TRAIN_A_CLASS)
    test = first_of_each_class(full.y_test, TEST_A_CLASS)
    np.savez_compressed(
        output / "fashion_mnist.npz",
        x_train=full.x_train[train, 0],
        y_train=full.y_train[train].astype(np.uint8),
        index_train=train.astype(np.int32),
        x_test=full.x_test[test, 0],
        y_test=full.y_test[test].astype(np.uint8),
        index_test=test.astype(np.int32),
        class_names=np.array(FASHION),
    )
    licence = copyright_file.read_text(encoding="utf-8").split("License: Expat\n ", 1)[1]
    text = re.sub(r"^ \.?", "", f" {licence}", flags=re.MULTILINE)
    (output / "fashion_mnist.LICENSE.txt").write_text(
        "Fashion-MNIST (https://github.com/zalandoresearch/fashion-mnist)\n"
        f"fashion_mnist.npz holds the first {TRAIN_A_CLASS} training and {TEST_A_CLASS} test pictures of each class,\n"
        "unchanged; index_train and index_test are their positions in the official files.\n\n"
        "The MIT License (MIT)\n\nCopyright (c) 2017 Zalando SE, https://tech.zalando.com\n\n"
        + "\n".join(line.rstrip() for line in text.strip().splitlines())
        + "\n",
        encoding="utf-8",
    )


def bundle_digits(output: Path) -> None:
    """Write scikit-learn's digits; a pixel v of 0 .. 16 becomes p = round(v * 255 / 16), so v = round(p * 16 / 255)."""
    digits = load_digits()
    x = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    write_split(output / "digits.npz", x, digits.target, class_names=np.array(list("0123456789")))
    (output / "digits.LICENSE.txt").write_text(
        ATTRIBUTION.format(
            title="Optical Recognition of Handwritten Digits",
            authors="E. Alpaydin, C. Kaynak",
            year=1998,
            doi="10.24432/C50P49",
            changes="pixels 0 .. 16 stored as round(v * 255 / 16);\n"
            "split into 1,437 training and 360 test pictures (stratified, seed 0).",
        ),
        encoding="utf-8",
    )


def bundle_breast_cancer(output: Path) -> None:
    """Write scikit-learn's breast cancer table, unscaled."""
    table = load_breast_cancer()
    names = {"class_names": np.array(table.target_names), "feature_names": np.array(table.feature_names)}
    write_split(output / "breast_cancer.npz", table.data.astype(np.float32), table.target, **names)
    (output / "breast_cancer.LICENSE.txt").write_text(
        ATTRIBUTION.format(
            title="Breast Cancer Wisconsin (Diagnostic)",
            authors="W. Wolberg, O. Mangasarian, N. Street, W. Street",
            year=1995,
            doi="10.24432/C5DW2B",
            changes="numbers stored as float32;\nsplit into 455 training and 114 test rows (stratified, seed 0).",
        ),
        encoding="utf-8",
    )


def write_split(path: Path, x: npt.NDArray[Any], y: npt.NDArray[Any], **names: Any) -> None:
    """Write a fifth of the examples as test and the rest as train, stratified by class."""
    x_train, x_test, y_train, y_test = train_test_split(
        x, y.astype(np.uint8), test_size=0.2, stratify=y, random_state=0
    )
    np.savez_compressed(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, **names)


def main() -> None:
    """Read the arguments and write every bundled file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fashion_folder", type=Path)
    parser.add_argument("copyright_file", type=Path)
    parser.add_argument("output_folder", type=Path)
    given = parser.parse_args()
    given.output_folder.mkdir(parents=True, exist_ok=True)
    bundle_fashion(given.fashion_folder, given.copyright_file, given.output_folder)
    bundle_digits(given.output_folder)
    bundle_breast_cancer(given.output_folder)


if __name__ == "__main__":
    main()
