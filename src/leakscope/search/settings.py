"""The settings of a policy search, read from a YAML file and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.data import SOURCES
from leakscope.models import MODELS
from leakscope.scenario.components import model_of
from leakscope.scenario.problems import Problem
from leakscope.scenario.reader import read_user_file
from leakscope.search.accuracy_score import THRESHOLD
from leakscope.search.candidates import draw_policies
from leakscope.search.privacy_score import Line
from leakscope.search.utility import Recipe

COUNTS = ("width", "keep", "images", "stride", "epochs", "batches", "batch_size", "iterations", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySearch:
    """What is searched and how it is scored; the defaults are the paper's, on data that comes with the package."""

    data: str = "fashion_mnist"
    model: str = "resnet20"
    width: int = 16
    candidates: int = 1500  # policies of `shortest` to `longest` operations
    shortest: int = 3
    longest: int = 3
    threshold: float | None = THRESHOLD  # of the accuracy score; -85 is for the authors' form and 100 classes
    keep: int = 5  # most private policies that are selected
    seed: int = 0
    method: Literal["random", "optuna"] = "random"  # optuna needs the extra 'search'
    sampler: Literal["nsga2", "tpe"] = "nsga2"  # random until 50 (nsga2, a generation) or 10 (tpe) are scored
    score: Literal["privacy", "attack"] = "privacy"  # attack: the PSNR of an attack of `iterations` instead of S_pri
    images: int = 100  # test images for privacy: every `stride`-th from number `first` on
    first: int = 200
    stride: int = 5
    epochs: int = 50  # of training the network for S_pri, on a `share` of the training part
    share: float = 0.1
    points: int = 21
    per_tensor: bool = True
    trapezoid: bool = True
    batches: int = 10  # of `batch_size` test images, for the accuracy score
    batch_size: int = 100
    iterations: int = 1200
    group: int = 10  # policies scored and saved together

    def __post_init__(self) -> None:
        lookup(SOURCES, self.data, "data set")
        lookup(MODELS, self.model, "model")
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise InputError(f"PolicySearch.{name} must be at least 1, got {getattr(self, name)}")
        if self.first < 0:
            raise InputError(f"PolicySearch.first must not be below 0, got {self.first}")
        Line(points=self.points)
        Recipe(share=self.share)
        draw_policies(self.candidates, self.seed, shortest=self.shortest, longest=self.longest)


def read_search(path: Path) -> PolicySearch:
    """Return the search in a YAML file, or raise all its errors with their lines."""
    file = read_user_file(path, "a search file", may_be_empty=True)
    fields = file.check(model_of(PolicySearch, "search"))
    try:
        return PolicySearch(**fields)
    except InputError as error:
        name = str(error).split(" ", 1)[0].rpartition(".")[2]
        raise file.error([Problem((name,) if name in fields else (), str(error))]) from None
