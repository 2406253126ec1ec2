"""The settings of a policy search: a checked value, read from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.data import SOURCES
from leakscope.models import MODELS
from leakscope.scenario.pieces import model_of
from leakscope.scenario.problems import Problem
from leakscope.scenario.reader import read_user_file
from leakscope.search.accuracy_score import THRESHOLD
from leakscope.search.candidates import draw_policies
from leakscope.search.privacy_score import Line
from leakscope.search.utility import Recipe

COUNTS = ("width", "keep", "images", "stride", "epochs", "batches", "batch_size", "iterations", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySearch:
    """What is searched and how it is scored; the defaults are the paper's, on data that comes with the package.

    `candidates` random policies of `shortest` to `longest` operations; `threshold` rejects by the accuracy score (-85 suits
    the authors' form with 100 classes; None rejects nothing), `keep` are kept. Privacy is scored on `images` test pictures
    from number `first` on, every `stride`-th, at a network trained on a `share` of the training part for `epochs`; `score`
    'attack' measures the PSNR of an attack of `iterations` on them instead. Accuracy is scored on `batches` of `batch_size`.
    `group` policies are scored and saved together. `method` 'optuna' asks Optuna for the candidates instead (extra 'search'),
    by `sampler`: 'nsga2' draws at random until a generation of 50 is scored, 'tpe' until 10 are.
    """

    data: str = "fashion_mnist"
    model: str = "resnet20"
    width: int = 16
    candidates: int = 1500
    shortest: int = 3
    longest: int = 3
    threshold: float | None = THRESHOLD
    keep: int = 5
    seed: int = 0
    method: Literal["random", "optuna"] = "random"
    sampler: Literal["nsga2", "tpe"] = "nsga2"
    score: Literal["privacy", "attack"] = "privacy"
    images: int = 100
    first: int = 200
    stride: int = 5
    epochs: int = 50
    share: float = 0.1
    points: int = 21
    per_tensor: bool = True
    trapezoid: bool = True
    batches: int = 10
    batch_size: int = 100
    iterations: int = 1200
    group: int = 10

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
    """Return the search that a YAML file describes, or every mistake with its line."""
    file = read_user_file(path, "a search file", may_be_empty=True)
    fields = file.check(model_of(PolicySearch, "search"))
    try:
        return PolicySearch(**fields)
    except InputError as error:
        name = str(error).split(" ", 1)[0].rpartition(".")[2]
        raise file.error([Problem((name,) if name in fields else (), str(error))]) from None
