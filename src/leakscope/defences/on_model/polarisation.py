"""The Secret Polarization Network: a private head and secret codes whose gradient hides that of the public loss.

Fan et al. 2020, arXiv:2006.11601, section 3 and algorithm 1. The private head shares the backbone and adds a secret term to the
shared backbone gradient. The gradient of the PUBLIC HEAD gets no such term: it is a1 times the plain gradient, so an informed
attacker reads labels and features off it (`attacks/polarised.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree
from leakscope.learning.losses import Loss
from leakscope.learning.polarisation import BIAS, CODES, WEIGHT, PolarisedLoss, with_codes, with_second_head


@dataclass(frozen=True, slots=True)
class Polarisation:
    """Hide the gradient behind a private head: `a1 * CE + a2 * sum_k max(m - v_k t_k, 0)`, codes and head kept secret.

    `alpha1=None` is 1 - alpha2 (section 3); the paper's experiments have 1 (appendix C). `bits` is K, `margin` is m. The private
    head starts in U(-spread, spread), by default PyTorch's range for dense layers, 1 / sqrt(features). Each client draws its own
    head and codes from its key; its codes are distinct.

    Equation: `a1 CE(u, y) + a2 sum_k max(m - v_k t_k, 0)`, with the head v and the code t of the class kept secret.
    Reference: Fan et al. 2020, Rethinking privacy preserving deep learning, arXiv:2006.11601, section 3.
    Works when: the attacker does not know the defence. Labels and features stay readable from the public head.
    Costs: a second head of `bits` rows at the client; accuracy, more with a larger alpha2.
    """

    alpha2: float | Tensor = 0.1
    alpha1: float | Tensor | None = 1.0
    margin: float | Tensor = 1.0
    bits: int = 64
    spread: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for field, value in (("alpha2", self.alpha2), ("alpha1", self.alpha1)):
            if value is not None:
                _at_least(f"Polarisation.{field}", value, 0.0)
        if self.alpha1 is None and bool((torch.as_tensor(self.alpha2) > 1).any()):
            raise InputError(f"Polarisation.alpha2 must be in [0, 1] where alpha1 is 1 - alpha2, got {self.alpha2}")
        _at_least("Polarisation.margin", self.margin, 1.0)
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or self.bits < 1:
            raise InputError(f"Polarisation.bits must be a whole number of at least 1, got {self.bits!r}")
        if self.spread is not None and not 0 < self.spread < math.inf:
            raise InputError(f"Polarisation.spread must be in (0, inf), got {self.spread}")

    @property
    def public_weight(self) -> float | Tensor:
        """Return a1."""
        return 1 - self.alpha2 if self.alpha1 is None else self.alpha1

    def facts(self, each: Tensor) -> Tree:
        """Return what an attacker may know (bits, weights, margin; no secrets), one value for each entry of `each`."""
        known = {"bits": self.bits, "alpha1": self.public_weight, "alpha2": self.alpha2, "margin": self.margin}
        return {
            name: torch.as_tensor(value, dtype=torch.float32, device=each.device).expand(len(each)).clone()
            for name, value in known.items()
        }

    def check(self, classes: int) -> None:
        """Raise if there are more classes than codes."""
        if classes > 2**self.bits:
            raise InputError(
                f"more classes than codes: Polarisation.bits = {self.bits} has {2**self.bits} codes, the model has {classes} classes"
            )

    def polarise(self, model: Model) -> Model:
        """Return the client's network: private head and codes are parameters that are not shared."""
        self.check(model.classes)
        return with_second_head(model, self.bits)

    def draw(self, model: Model, keys: Tensor) -> Tree:
        """Return each client's secrets from its key: private weight, private bias if any, codes. `model` is polarised."""
        keys = random.fold(keys, "polarisation")
        weight = model.parameters[WEIGHT]
        edge = 1 / math.sqrt(weight.shape[1]) if self.spread is None else self.spread
        secrets = {}
        for name in sorted(model.private & {WEIGHT, BIAS, CODES}):
            drawn = 2 * random.uniform(random.fold(keys, name), model.parameters[name].shape, weight.dtype) - 1
            secrets[name] = distinct(drawn >= 0).to(weight.dtype) * 2 - 1 if name == CODES else edge * drawn
        return secrets


def distinct(bits: Tensor) -> Tensor:
    """Return boolean codes (... x C x K) with duplicates replaced by their next free variant.

    Variant j of a code flips its first bits by the binary digits of j. Earlier classes take at most C - 1 of a class's C
    variants, so all codes become distinct if C <= 2^K.

    >>> distinct(torch.tensor([[True, False], [True, False], [False, False]])).int()
    tensor([[1, 0],
            [0, 0],
            [0, 1]], dtype=torch.int32)
    """
    classes = bits.shape[-2]
    digits = min(bits.shape[-1], (classes - 1).bit_length())
    places, variants = 2 ** torch.arange(digits, device=bits.device), 2**digits
    first, rest = (bits[..., :digits] * places).sum(-1), bits[..., digits:]  # first bits as numbers
    none = first.new_zeros(*first.shape[:-1], variants + 1)
    chosen = [first[..., 0]]
    for label in range(1, classes):
        alike = (rest[..., :label, :] == rest[..., label : label + 1, :]).all(-1)
        theirs = torch.where(alike, torch.stack(chosen, -1) ^ first[..., label, None], variants)
        taken = none.scatter(-1, theirs, 1)[..., :variants]
        chosen.append(first[..., label] ^ taken.argmin(-1))
    first_bits = (torch.stack(chosen, -1)[..., None] & places) > 0
    return torch.cat([first_bits, rest], -1)


@dataclass(frozen=True, slots=True)
class Equipped:
    """What a client trains with: loss, weights and targets; `kept` are secrets that training does not change."""

    loss: Loss
    weights: Tree
    targets: Tensor
    kept: Tree

    __repr__ = short_repr


def equip(guard: Polarisation | None, model: Model, loss: Loss, weights: Tree, targets: Tensor) -> Equipped:
    """Return what ONE client trains with, given a polarised model and weights; the inputs unchanged if `guard` is None."""
    if guard is None:
        return Equipped(loss, weights, targets, {})
    moving = {name: value for name, value in weights.items() if name != CODES}
    polarised = PolarisedLoss(loss, model.classes, guard.public_weight, guard.alpha2, guard.margin)
    return Equipped(polarised, moving, with_codes(targets, weights[CODES]), {CODES: weights[CODES]})


def _at_least(field: str, value: float | Tensor, least: float) -> None:
    number = torch.as_tensor(value)
    if not bool(((number >= least) & number.isfinite()).all()):
        raise InputError(f"{field} must be in [{least:g}, inf), got {value}")
