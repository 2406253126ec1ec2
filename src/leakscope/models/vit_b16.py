"""ViT-B/16 with the layers, names and shapes of torchvision's vit_b_16, so that its state_dict loads.

Dosovitskiy et al. 2021, arXiv:2010.11929, table 1: patches of 16x16, a class token, 12 blocks of width 768 with 12 heads.
Attention uses its plain form: fused ones have no second derivative.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.models.settings import image_shape, positive
from leakscope.models.vit import attend


class SelfAttention(nn.Module):
    """Multi-head attention; parameters named as those of nn.MultiheadAttention."""

    drawn_from = (-0.05, 0.05)  # read by `leakscope.models.initialise`

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        out: Tensor = self.out_proj(attend(F.linear(x, self.in_proj_weight, self.in_proj_bias), self.heads))
        return out


class EncoderLayer(nn.Module):
    """Attention, then a two-layer network, each with a layer norm before and a skip connection."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = SelfAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.mlp = nn.Sequential(first, nn.GELU(), nn.Identity(), second, nn.Identity())  # numbered as torchvision's

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        x = x + self.self_attention(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Encoder(nn.Module):
    """Positions, blocks and a last layer norm."""

    drawn_from = (-0.02, 0.02)

    def __init__(self, tokens: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, tokens, width))
        self.layers = nn.Sequential()
        for k in range(depth):
            self.layers.add_module(f"encoder_layer_{k}", EncoderLayer(width, heads, 4 * width))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        out: Tensor = self.ln(self.layers(x + self.pos_embedding))
        return out


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token, the encoder, and a dense head on the class token."""

    drawn_from = (0.0, 0.0)

    def __init__(
        self, channels: int, patches: int, classes: int, patch: int, width: int, heads: int, depth: int
    ) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(channels, width, patch, stride=patch)
        self.encoder = Encoder(patches + 1, width, heads, depth)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(x.shape[0], -1, -1), patches], dim=1)
        out: Tensor = self.heads(self.encoder(tokens)[:, 0])
        return out


def vit_b16(
    *,
    input_shape: Sequence[int] = (3, 224, 224),
    classes: int = 1000,
    patch: int = 16,
    width: int = 768,
    heads: int = 12,
    depth: int = 12,
) -> nn.Module:
    """Return ViT-B/16, or a smaller variant."""
    channels, height, breadth = image_shape("vit_b16", input_shape)
    if height % positive("patch", patch) or breadth % patch:
        raise InputError(f"vit_b16 cuts images into patches of side {patch}, which does not divide {height}x{breadth}")
    if positive("width", width) % positive("heads", heads):
        raise InputError(f"width must be a multiple of heads, got {width} and {heads}")
    patches = (height // patch) * (breadth // patch)
    return VisionTransformer(
        channels, patches, positive("classes", classes), patch, width, heads, positive("depth", depth)
    )
