"""LOKI: each client of a sum gets identity kernels of its own. Zhao et al. 2024, arXiv:2303.12233; MANDRAKE, arXiv:2303.14868.

A convolution with C kernels for each of K clients stands before an imprint layer. Client k gets the identity in its own kernels and 0
in all others, so it alone has gradients in the k-th block of the imprint layer's columns: a sum of all clients, securely
aggregated or not, leaves the blocks apart. Only the bias gradients are summed. A bin's content is therefore known up to a factor, and
the authors divide by its largest value. Here the factor comes from the bin itself: its functional <w, x> lies between two quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, labels_of
from leakscope.attacks.exact.ledger import ROUNDING
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import TINY, Tree
from leakscope.core.types import IMAGE_RANK, Knowledge, Observation, Reconstruction, Seeds, direction
from leakscope.servers.imprint import BIAS, FIRST, KERNELS, Imprint

SIDE = 3  # of a kernel


@dataclass(frozen=True, slots=True)
class Loki:
    """Separate the `clients` of a sum by kernels of their own, and imprint each into `units` bins (about 4 times its batch)."""

    clients: int
    units: int = 256
    client: int = 0
    name: str = "loki"

    def __post_init__(self) -> None:
        if self.clients < 1 or self.units < 2 or not 0 <= self.client < self.clients:
            raise InputError(
                f"Loki needs clients of at least 1, units of at least 2 and client below clients, got {self.clients}, "
                f"{self.units}, {self.client}"
            )

    def for_client(self, number: int) -> Loki:
        """Return the manipulation of one client of the sum."""
        return replace(self, client=number)

    def extend(self, model: Model) -> Model:
        """Return the network with convolution and imprint layer before it."""
        if len(model.input_shape) != IMAGE_RANK:
            raise InputError(f"{self.name} puts a convolution before the network; {model.name!r} reads no images")
        imprinted, channels = Imprint(inserted=self.units).extend(model), model.input_shape[0]
        first = imprinted.parameters[FIRST]
        own = {
            KERNELS: first.new_zeros(self.clients * channels, channels, SIDE, SIDE),
            FIRST: first.repeat(1, self.clients),
        }
        return replace(imprinted, name=f"loki {model.name}", parameters=imprinted.parameters | own, entry=None)

    def weights(self, model: Model, weights: Tree, public: Tensor, key: Tensor) -> Tree:
        """Return the imprint's weights with equal blocks, and identity kernels in this client's block."""
        imprinted, channels = Imprint(inserted=self.units).weights(model, weights, public, key), model.input_shape[0]
        kernels = public.new_zeros(self.clients, channels, channels, SIDE, SIDE)
        kernels[self.client, :, :, SIDE // 2, SIDE // 2] = torch.eye(channels).to(public)
        return imprinted | {KERNELS: kernels.flatten(0, 1), FIRST: imprinted[FIRST].repeat(1, self.clients)}

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the fullest bins of every client, as many as it has samples; grey where fewer are filled."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        if knowledge.samples % self.clients:
            raise InputError(f"{self.name} reads {self.clients} clients of equal size, got {knowledge.samples} samples")
        seen = observation.rounds[0]
        blocks = direction(seen, observation.shares)[FIRST].unflatten(2, (self.clients, -1)).transpose(1, 2)
        bins = -blocks.diff(dim=2, append=0 * blocks[:, :, :1])  # T x K x units x F
        row = seen.before[FIRST][:, 0, : math.prod(knowledge.input_shape)]
        flat, filled = _scaled(bins, row, -seen.before[BIAS], knowledge.samples // self.clients)
        shape = tuple(knowledge.input_shape)
        pictures = knowledge.scaling.unscale(flat.unflatten(-1, shape), len(shape))
        pictures = torch.where(filled.reshape(*filled.shape, *[1] * len(shape)), pictures, 0.5)
        unread = 1 - filled.to(flat.dtype).mean(1)
        return exact_result(pictures, labels_of(model, observation, knowledge, seeds), unread, 0.0)


def _scaled(bins: Tensor, row: Tensor, edges: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return T x (K number) x F fullest bins, scaled to the middle of their quantiles, and which are above rounding."""
    T, K, units, F = bins.shape
    upper = torch.cat([edges[:, 1:], 2 * edges[:, -1:] - edges[:, -2:-1]], 1)
    lower = torch.cat(
        [2 * edges[:, 1:2] - edges[:, 2:3], edges[:, 1:]], 1
    )  # the outer bins are open: as wide as the next
    strength = bins.norm(dim=3)
    chosen = strength.topk(min(number, units), dim=2).indices
    filled = strength.gather(2, chosen) > ROUNDING.get(bins.dtype, 1e-2) * strength.sum(2, keepdim=True)
    content = bins.gather(2, chosen[..., None].expand(-1, -1, -1, F))
    middle = ((lower + upper) / 2)[:, None].expand(T, K, units).gather(2, chosen)
    measure = torch.einsum("tknf,tf->tkn", content, row)
    factor = middle / torch.where(measure.abs() > TINY**4, measure, torch.inf)
    short = number - chosen.shape[2]
    flat = torch.nn.functional.pad(content * factor[..., None], (0, 0, 0, short))
    return flat.flatten(1, 2), torch.nn.functional.pad(filled, (0, short)).flatten(1, 2)
