"""The table of named data sets: description, terms, and the forms of their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from leakscope.core.scaling import Scaling
from leakscope.data.adult import read_adult
from leakscope.data.camera import camera
from leakscope.data.cifar import read_cifar10, read_cifar100
from leakscope.data.dataset import Dataset, Kind
from leakscope.data.femnist import read_femnist
from leakscope.data.idx import read_idx_folder
from leakscope.data.npz import read_npz
from leakscope.data.small_letters import read_small_letters
from leakscope.data.text import ALICE_SONNETS, GENERATED, sentence_set

FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

# Mean and standard deviation over all pixels of the official training part, per channel.
MNIST_STATISTICS = Scaling((0.1307,), (0.3081,))
FASHION_STATISTICS = Scaling((0.2860,), (0.3530,))
EMNIST_STATISTICS = Scaling((0.1736,), (0.3317,))
FEMNIST_STATISTICS = Scaling((0.96424,), (0.15768,))
CIFAR10_STATISTICS = Scaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_STATISTICS = Scaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
SVHN_STATISTICS = Scaling((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a data set in a directory: a path under it and its reader."""

    path: str
    read: Callable[[Path], Dataset]
    marker: str = ""  # a folder counts as complete if it has this file, which `fetch` writes last


@dataclass(frozen=True, slots=True)
class Download:
    """One official file, by the URL of the file."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True, slots=True)
class Source:
    """A named data set; `shape` and `classes` as published, `origin` is the home of the official files."""

    description: str
    kind: Kind
    shape: tuple[int, ...]
    classes: int
    terms: str
    origin: str
    forms: tuple[Form, ...]
    statistics: Scaling = field(default_factory=Scaling)
    bundled: bool = False
    downloads: tuple[Download, ...] = ()
    make: Callable[[], Dataset] | None = None  # builds a set that is no file: of another package, or sentences


def _npz(name: str) -> Form:
    return Form(f"{name}.npz", read_npz)


def _idx(folder: str, names: tuple[str, ...]) -> tuple[Form, ...]:
    """Return the forms of a folder with the four usual files, gzipped or not."""
    read = partial(read_idx_folder, class_names=names)
    return tuple(Form(folder, read, f"t10k-labels-idx1-ubyte{suffix}") for suffix in (".gz", ""))


def _cifar(name: str, number: int, read: Callable[[Path], Dataset]) -> tuple[Form, ...]:
    """Return the forms of CIFAR; the python version comes last and is rejected with a reason."""
    binary, python = f"cifar-{number}-binary", f"cifar-{number}-python"
    unpacked = {10: ("cifar-10-batches-bin", "cifar-10-batches-py"), 100: (binary, python)}[number]
    places = (f"{name}/{binary}.tar.gz", f"{binary}.tar.gz", unpacked[0], f"{python}.tar.gz", unpacked[1])
    return (_npz(name), *(Form(place, read) for place in places))


def _usual_four(base: str, md5: str) -> tuple[Download, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(Download(f"{base}{name}-ubyte.gz", digest) for name, digest in zip(names, md5.split(), strict=True))


_MNIST_FILES = _usual_four(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
    "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_FILES = _usual_four(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
    "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
)
_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"
_ADULT_HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_DIGITS = tuple("0123456789")

# terms and origin
_FASHION = ("MIT, (c) 2017 Zalando SE", "github.com/zalandoresearch/fashion-mnist")
_MNIST = ("usually given as CC BY-SA 3.0 (LeCun, Cortes, Burges)", "ossci-datasets.s3.amazonaws.com/mnist")
_CIFAR = ("no licence given, citation asked (Krizhevsky 2009)", "www.cs.toronto.edu/~kriz/cifar.html")
_SVHN = ("non-commercial use only (Netzer et al. 2011)", "ufldl.stanford.edu/housenumbers")
_LFW = ("no licence; research on face verification; real, named people: do not ship", "vis-www.cs.umass.edu/lfw")
_CAMERA = ("CC0 (Lav Varshney), as scikit-image states", "scikit-image.org, skimage.data.camera")
_NIST = "www.nist.gov/itl/products-and-services/emnist-dataset"
_EMNIST = ("no licence text known (from NIST Special Database 19, US government work)", _NIST)
_FEMNIST = ("BSD 2-clause as LEAF and the hubs state (from NIST Special Database 19)", "leaf.cmu.edu, data/femnist")
_UCI_DIGITS = ("CC BY 4.0 (Alpaydin, Kaynak 1998)", "archive.ics.uci.edu/dataset/80")
_UCI_CANCER = ("CC BY 4.0 (Wolberg, Mangasarian, Street, Street 1995)", "archive.ics.uci.edu/dataset/17")
_PUBLIC_DOMAIN = ("public domain (Shakespeare 1609, Carroll 1865)", "in the package: bundled/alice_sonnets.tsv")
_GENERATED = ("generated, no rights", "in the package: leakscope.data.generate_text")
_UCI_ADULT = ("CC BY 4.0 (Becker, Kohavi 1996)", "archive.ics.uci.edu/dataset/2")

# fmt: off
SOURCES: dict[str, Source] = {
    "fashion_mnist": Source(
        "Fashion-MNIST: 3,000 + 1,000 pictures of clothing, balanced, of the official 70,000",
        "image", (1, 28, 28), 10, *_FASHION, (_npz("fashion_mnist"),), FASHION_STATISTICS, bundled=True),
    "digits": Source(
        "Optical recognition of handwritten digits: 1,437 + 360 small pictures (scikit-learn's copy)",
        "image", (1, 8, 8), 10, *_UCI_DIGITS, (_npz("digits"),), bundled=True),
    "breast_cancer": Source(
        "Breast Cancer Wisconsin (Diagnostic): 455 + 114 rows of 30 numbers (scikit-learn's copy)",
        "table", (30,), 2, *_UCI_CANCER, (_npz("breast_cancer"),), bundled=True),
    "fashion_mnist_full": Source(
        "Fashion-MNIST: pictures of clothing, as many as your copy has (the official files: 60,000 + 10,000)",
        "image", (1, 28, 28), 10, *_FASHION,
        (_npz("fashion_mnist_full"), _npz("fashion_mnist"), *_idx("fashion_mnist_full", FASHION), *_idx("FashionMNIST/raw", FASHION)),
        FASHION_STATISTICS, downloads=_FASHION_FILES),
    "mnist": Source(
        "MNIST: handwritten digits; the npz file also has the writers",
        "image", (1, 28, 28), 10, *_MNIST, (_npz("mnist"), *_idx("mnist", _DIGITS), *_idx("MNIST/raw", _DIGITS)),
        MNIST_STATISTICS, downloads=_MNIST_FILES),
    "cifar10": Source(
        "CIFAR-10: small colour photographs of ten kinds of things",
        "image", (3, 32, 32), 10, *_CIFAR, _cifar("cifar10", 10, read_cifar10), CIFAR10_STATISTICS,
        downloads=(Download(f"{_CIFAR_HOME}cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),)),
    "cifar100": Source(
        "CIFAR-100: small colour photographs of a hundred kinds of things",
        "image", (3, 32, 32), 100, *_CIFAR, _cifar("cifar100", 100, read_cifar100), CIFAR100_STATISTICS,
        downloads=(Download(f"{_CIFAR_HOME}cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),)),
    "svhn": Source(
        "SVHN: digits cut from photographs of house numbers; groups are the photographs",
        "image", (3, 32, 32), 10, *_SVHN, (_npz("svhn"),), SVHN_STATISTICS),
    "lfw_face": Source(
        "Labeled Faces in the Wild: 106 people with at least 14 pictures each, 32 x 32",
        "image", (3, 32, 32), 106, *_LFW, (_npz("lfw_face"),)),
    "lfw_128": Source(
        "Labeled Faces in the Wild: a hundred test pictures of the same 106 people, 128 x 128",
        "image", (3, 128, 128), 106, *_LFW, (_npz("lfw_128"),)),
    "camera": Source(
        "One grey photograph of 512 x 512 (scikit-image's `camera`), and no training part",
        "image", (1, 512, 512), 2, *_CAMERA, (_npz("camera"),), make=camera),
    "emnist_byclass": Source(
        "EMNIST ByClass: handwritten digits and letters, 62 classes",
        "image", (1, 28, 28), 62, *_EMNIST, (_npz("emnist_byclass"),), EMNIST_STATISTICS),
    "emnist_as_femnist": Source(
        "EMNIST ByClass shrunk to 13 pixels, dark on white: a stand-in for FEMNIST, with its statistics",
        "image", (1, 28, 28), 62, "as emnist_byclass, derived from its file", _NIST,
        (Form("emnist_byclass.npz", read_small_letters),), FEMNIST_STATISTICS),
    "femnist": Source(
        "FEMNIST: handwritten digits and letters by writer, from LEAF's JSON or the hubs' parquet",
        "image", (1, 28, 28), 62, *_FEMNIST,
        (_npz("femnist"), *(Form(f"femnist{suffix}", read_femnist) for suffix in ("", ".json", ".parquet"))),
        FEMNIST_STATISTICS),
    "adult": Source(
        "UCI Adult: 32,561 + 16,281 people of the 1994 census, income over 50,000 dollars or not",
        "table", (108,), 2, *_UCI_ADULT,
        (Form("adult.csv.gz", read_adult), Form("adult.csv", read_adult), Form("adult", read_adult, "adult.test")),
        downloads=(Download(f"{_ADULT_HOME}adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
                   Download(f"{_ADULT_HOME}adult.test", "35238206dfdf7f1fe215bbb874adecdc"))),
    ALICE_SONNETS: Source(
        "Sentences of Shakespeare's sonnets and of Alice's Adventures in Wonderland, by their work",
        "text", (8,), 2, *_PUBLIC_DOMAIN, (), make=sentence_set),
    GENERATED: Source(
        "Sentences of a small grammar with Zipf frequencies, by the rule that made them",
        "text", (8,), 3, *_GENERATED, (), make=partial(sentence_set, GENERATED)),
}
# fmt: on
