"""A small vision transformer as SME attacks it: by default the whole image is one patch.

Dosovitskiy et al. 2021, arXiv:2010.11929: patches and a class token with learned positions, pre-norm blocks of attention and a
two-layer network, a last layer norm and a head on the class token. The attention of the first block has no layer norm and no
skip: architecture A of APRIL (Lu et al. 2021, arXiv:2112.14087), which lets the input be read from the gradient. Sizes as in Zhu
et al. 2023, arXiv:2306.00127, appendix G. Attention uses its plain form: fused ones have no second derivative.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakscope.core.errors import InputError
from leakscope.models.settings import image_shape, positive


class Tokens(nn.Module):
    """The class token before the patches, and a position added to each; both start at 0."""

    drawn_from = (0.0, 0.0)  # read by `leakscope.models.initialise`

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, patches + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return N x (1 + patches) x width."""
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position


def attend(projected: Tensor, heads: int, *, causal: bool = False, real: Tensor | None = None) -> Tensor:
    """Return the tokens mixed by attention (N x tokens x width) from their queries, keys and values side by side (3 x width).

    With `causal` a token sees itself and those before it. `real` (N x tokens) is False for padding, which only padding itself sees.
    """
    query, key, value = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    allowed = None
    if real is not None:
        itself = torch.eye(real.shape[-1], dtype=torch.bool, device=real.device)
        allowed = real[:, None, None, :] | itself  # a token that sees nothing would be NaN
        allowed, causal = (allowed & torch.ones_like(itself).tril() if causal else allowed), False
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value, allowed, is_causal=causal).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        output: Tensor = self.out(attend(self.project(x), self.heads))
        return output


class Block(nn.Module):
    """Attention, then a two-layer network; `bare` leaves out layer norm and skip of the attention."""

    def __init__(self, width: int, heads: int, ratio: int, *, bare: bool) -> None:
        super().__init__()
        self.bare = bare
        if not bare:
            self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.dense1 = nn.Linear(width, ratio * width)
        self.dense2 = nn.Linear(ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        x = self.attention(x) if self.bare else x + self.attention(self.norm1(x))
        output: Tensor = x + self.dense2(F.gelu(self.dense1(self.norm2(x))))
        return output


class Patches(nn.Module):
    """The image cut into patches of (height, width), each through the same dense layer."""

    def __init__(self, channels: int, sides: tuple[int, int], width: int) -> None:
        super().__init__()
        self.sides = sides
        self.dense = nn.Linear(channels * sides[0] * sides[1], width)

    def forward(self, x: Tensor) -> Tensor:
        """Return N x patches x width."""
        cut = x.unflatten(3, (-1, self.sides[1])).unflatten(2, (-1, self.sides[0]))  # N x C x down x h x across x w
        output: Tensor = self.dense(cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        return output


class First(nn.Module):
    """The first token of each input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return N x width."""
        return x[:, 0]


def vit(
    *,
    input_shape: Sequence[int] = (1, 28, 28),
    classes: int = 62,
    patch: int | None = None,
    width: int = 384,
    heads: int = 4,
    depth: int = 4,
    ratio: int = 2,
) -> nn.Module:
    """Return SME's ViT: one 28x28 patch and a class token, width 384, 4 heads, 4 blocks, head 384-768-62 with GELU.

    `patch` is the side of square patches; None uses the whole image.
    """
    channels, height, breadth = image_shape("vit", input_shape)
    sides = (height, breadth) if patch is None else (positive("patch", patch), patch)
    if height % sides[0] or breadth % sides[1]:
        raise InputError(f"vit cuts pictures into patches of side {patch}, which does not divide {height}x{breadth}")
    if positive("width", width) % positive("heads", heads):
        raise InputError(f"width must be a multiple of heads, got {width} and {heads}")
    number = (height // sides[0]) * (breadth // sides[1])
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        patches=Patches(channels, sides, width), tokens=Tokens(number, width)
    )
    for k in range(positive("depth", depth)):
        layers[f"block{k + 1}"] = Block(width, heads, positive("ratio", ratio), bare=k == 0)
    layers["first"] = First()
    layers["norm"] = nn.LayerNorm(width)
    layers["dense"] = nn.Linear(width, 2 * width)
    layers["activation"] = nn.GELU()
    layers["head"] = nn.Linear(2 * width, positive("classes", classes))
    return nn.Sequential(layers)
