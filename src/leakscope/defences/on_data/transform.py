"""Random crop, flip and policy on a client's private images, drawn separately for every image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.short_repr import short_repr
from leakscope.defences.on_data.applying import apply, check_pictures, to_bytes, to_unit
from leakscope.defences.on_data.policy import LONGEST, NONE, Policy, parse_policies
from leakscope.learning.resample import translated


@dataclass(frozen=True, slots=True)
class Draws:
    """The random draws for N images: policy index (N), signs (N x 3), crop corner (N x 2: x, y), flip (N)."""

    choice: Tensor
    signs: Tensor
    corner: Tensor
    flip: Tensor

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Transform:
    """Transform every image before the network sees it: random crop, flip, then a policy of the 50 operations (ATS).

    `policy` is 'none', '3-1-7' (one to three operations), or a hybrid '3-1-7+43-18-18', of which each image draws one. `crop`
    pads that many black pixels on every side and cuts a random window of the original size; training uses 4. `flip` mirrors half
    of the images. The order is that of the authors' runs.

    Equation: the update is that of `T(x)`: `grad l(w, T(x), y)`, with T drawn separately for every image.
    Reference: Gao et al. 2021, arXiv:2011.12505; [Re] of it (the reproduction) for hybrids and the enhanced attack.
    Works when: T discards pixels irreversibly (large translations, posterize). An attacker who knows the policy simulates T.
    Costs: accuracy, depending on the policy; a few operations an image. Only for images of 1 or 3 channels.
    """

    policy: str | int = NONE
    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            parse_policies(self.policy)
        except InputError as error:
            raise InputError(f"Transform.{error}") from None
        if isinstance(self.crop, bool) or not isinstance(self.crop, int) or self.crop < 0:
            raise InputError(f"Transform.crop must be a whole number of pixels, not below 0, got {self.crop!r}")

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Return the policies from which each image draws one; () for none."""
        return parse_policies(self.policy)

    def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Return the policies as (kind, magnitude) pairs for an informed attacker, without the random draws."""
        return tuple(tuple((op.kind, op.magnitude) for op in policy.operations) for policy in self.policies)

    def draw(self, keys: Tensor) -> Draws:
        """Return the draws of N images, one key each."""
        most = max(len(self.policies), 1)
        choice = (random.uniform(random.fold(keys, "policy"), (), torch.float64) * most).long()
        signs = torch.where(random.uniform(random.fold(keys, "signs"), (LONGEST,)) < 0.5, -1, 1)
        window = 2 * self.crop + 1
        corner = (random.uniform(random.fold(keys, "crop"), (2,), torch.float64) * window).long()
        return Draws(choice, signs, corner, random.uniform(random.fold(keys, "flip"), ()) < 0.5)

    def change(self, pictures: Tensor, draws: Draws) -> Tensor:
        """Return N images (N x C x H x W, bytes or in [0, 1]) transformed by the given draws."""
        check_pictures(pictures)
        if self.crop:
            across, down = (draws.corner - self.crop).to(torch.float64).unbind(-1)
            pictures = translated(pictures, across, down)
        if self.flip:
            pictures = torch.where(draws.flip[:, None, None, None], pictures.flip(-1), pictures)
        if not self.policies:
            return pictures
        as_bytes = to_bytes(pictures) if pictures.is_floating_point() else pictures
        changed = run_policy(as_bytes, self.policies[0], draws.signs)
        for number, policy in enumerate(self.policies[1:], start=1):
            mine = (draws.choice == number)[:, None, None, None]
            changed = torch.where(mine, run_policy(as_bytes, policy, draws.signs), changed)
        return to_unit(changed, pictures.dtype) if pictures.is_floating_point() else changed

    def protect_data(self, pictures: Tensor, key: Tensor) -> Tensor:
        """Return the private images of ONE trial, N x C x H x W, transformed with draws from the key."""
        check_pictures(pictures)
        return self.change(pictures, self.draw(picture_keys(key, pictures.shape[0])))


def picture_keys(key: Tensor, number: int) -> Tensor:
    """Return one key for each of the `number` images of a trial."""
    keys = random.fold(key, "on_data").expand(number)
    return random.fold(keys, torch.arange(number, device=key.device))


def run_policy(pictures: Tensor, policy: Policy, signs: Tensor) -> Tensor:
    """Return byte images after every operation of a policy; `signs` is N x (at least the number of operations)."""
    for number, op in enumerate(policy.operations):
        pictures = apply(pictures, op, signs[:, number])
    return pictures
