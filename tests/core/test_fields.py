"""Fields of frozen dataclasses: a value of the wrong kind is refused in one line that names the field."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from leakscope.clients import Client
from leakscope.clients.private import PrivateClient
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.types import LocalTraining
from leakscope.defences import DEFENCES, ChosenNoise, Clip, GaussianNoise, LaplaceNoise, Quantise, RandomMask, Sparsify
from leakscope.defences.on_data import Transform
from leakscope.defences.on_model import Polarisation


@dataclass(frozen=True, slots=True)
class Piece:
    """One field of every kind."""

    number: float = 0.0
    strength: float | Tensor | None = None
    whole: int = 1
    switch: bool = False
    name: str = "a"
    several: tuple[Clip, ...] = ()
    pair: tuple[int, str] = (1, "a")
    call: Callable[[], int] = int

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"number": 1},
        {"number": np.float32(0.5)},
        {"strength": torch.ones(3)},
        {"strength": np.float64(1.0)},
        {"whole": np.int64(3)},
        {"switch": np.True_},
        {"several": (Clip(1.0), Clip(2.0))},
        {"several": [Clip(1.0)]},
        {"pair": (2, "b")},
        {"call": len},
    ],
    ids=str,
)
def test_what_counts_as_the_kind_is_taken(given: dict[str, object]) -> None:
    Piece(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"number": "1"}, "Piece.number must be a number, got '1'"),
        ({"number": torch.ones(2)}, "Piece.number must be a number, got tensor([1., 1.])"),
        ({"strength": "x"}, "Piece.strength must be a number or a tensor or None, got 'x'"),
        ({"whole": 1.5}, "Piece.whole must be a whole number, got 1.5"),
        ({"switch": "no"}, "Piece.switch must be true or false, got 'no'"),
        ({"name": 3}, "Piece.name must be text, got 3"),
        ({"several": Clip(1.0)}, "Piece.several must be a tuple, each Clip, got Clip(bound=1.0, each=False)"),
        ({"several": ("clip",)}, "Piece.several must be a tuple, each Clip, got ('clip',)"),
        ({"pair": (1, 2)}, "Piece.pair must be a tuple, a whole number, text, got (1, 2)"),
        ({"pair": (1,)}, "Piece.pair must be a tuple, a whole number, text, got (1,)"),
        ({"number": "x" * 500}, "Piece.number must be a number, got '" + "x" * 79),
    ],
    ids=lambda given: str(given)[:40],
)
def test_another_kind_is_refused_in_one_line(given: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        Piece(**given)  # type: ignore[arg-type]


WRONG: dict[str, Callable[[], object]] = {
    "Sparsify.drop": lambda: Sparsify("a"),  # type: ignore[arg-type]
    "Sparsify.each": lambda: Sparsify(0.5, each="yes"),  # type: ignore[arg-type]
    "RandomMask.share": lambda: RandomMask([0.5]),  # type: ignore[arg-type]
    "GaussianNoise.sigma": lambda: GaussianNoise("x"),  # type: ignore[arg-type]
    "LaplaceNoise.scale": lambda: LaplaceNoise(scale="x"),  # type: ignore[arg-type]
    "ChosenNoise.share": lambda: ChosenNoise(0.1, "x"),  # type: ignore[arg-type]
    "Clip.bound": lambda: Clip("1"),  # type: ignore[arg-type]
    "Quantise.stochastic": lambda: Quantise(4, stochastic="no"),  # type: ignore[arg-type]
    "Polarisation.alpha2": lambda: Polarisation("x"),  # type: ignore[arg-type]
    "Transform.crop": lambda: Transform(crop="x"),  # type: ignore[arg-type]
    "LocalTraining.rate": lambda: LocalTraining(rate="x"),  # type: ignore[arg-type]
    "LocalTraining.epochs": lambda: LocalTraining(epochs="2"),  # type: ignore[arg-type]
    "PrivateClient.bound": lambda: PrivateClient(bound="x"),  # type: ignore[arg-type]
    "Client.local": lambda: Client(local=5),  # type: ignore[arg-type]
    "Client.server_rate": lambda: Client(server_rate="x"),  # type: ignore[arg-type]
    "Client.defences": lambda: Client(defences=Clip(1.0)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("field", WRONG)
def test_pieces_and_clients_name_the_field(field: str) -> None:
    with pytest.raises(InputError, match=rf"^{re.escape(field)} must be [^\n]*$"):
        WRONG[field]()


def test_a_piece_of_ones_own_stands_where_ours_does() -> None:
    @dataclass(frozen=True)
    class Mine:
        def protect_data(self, pictures: Tensor, key: Tensor) -> Tensor:
            del key
            return pictures

        def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]:
            return ()

    Client(on_data=Mine())
    for wrong in ("mine", Clip(1.0)):
        with pytest.raises(InputError, match=r"^Client\.on_data .*DataDefence"):
            Client(on_data=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^Client\.on_model .*Polarisation"):
        Client(on_model=Clip(1.0))  # type: ignore[arg-type]


def test_true_is_no_number() -> None:
    with pytest.raises(InputError, match=r"^LocalTraining\.epochs .*got True"):
        LocalTraining(epochs=True)
    with pytest.raises(InputError, match=r"^Clip\.bound must be "):
        Clip(True)


@pytest.mark.parametrize("defences", [("clip",), (Clip,), 3, "clip"], ids=str)
def test_a_client_takes_defences_alone(defences: object) -> None:
    with pytest.raises(InputError, match=r"^Client\.defences .*UpdateDefence"):
        Client(defences=defences)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DEFENCES)
def test_every_defence_refuses_text_for_any_of_its_settings(name: str) -> None:
    defence = DEFENCES[name]()
    for setting in dataclasses.fields(defence):  # type: ignore[arg-type]
        with pytest.raises(InputError, match=rf"^{type(defence).__name__}\.{setting.name} must be"):
            DEFENCES[name](**{setting.name: "text"})
