"""Pages to test with: small, but with every section, and any part replaceable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from leakscope.metrics.interval import Estimate, wilson
from leakscope.report import Exact, Gallery, NoiseLevel, NoiseSweep, Page, Pair, Provenance, TableRow, Tile

MakePage = Callable[..., Page]
MakeTile = Callable[..., Tile]


def rate(hits: int, n: int) -> Estimate:
    return Estimate(hits / n, *wilson(hits / n, n), n, n)


def mean(value: float) -> Estimate:
    return Estimate(value, 0.9 * value, 1.1 * value, 8, 8)


def build_tile(truth: Tensor, *, seed: int = 0, frames: int = 5, last: int = 40, label: str = "boot") -> Tile:
    """Return a tile whose film goes from noise to the truth."""
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed))
    share = torch.linspace(0, 1, frames).view(-1, *[1] * truth.ndim)
    at = tuple(round(last * i / max(1, frames - 1)) for i in range(frames))
    return Tile(
        truth=truth,
        frames=(1 - share) * noise + share * truth if frames > 1 else truth[None],
        frames_at=at,
        label=label,
        guess="bag",
        mse=3.1e-7,
        ssim=0.998 if truth.ndim > 1 else None,
        steps=at[-1],
        outcome="converged",
        recovered=True,
    )


def build_page(
    *,
    shape: tuple[int, ...] = (1, 28, 28),
    truths: Tensor | None = None,
    attacks: int = 2,
    tiles: int = 3,
    frames: int = 5,
    **changes: Any,
) -> Page:
    """Return a page of `tiles` random truths (or those given) per attack; `changes` replaces fields of the Page."""
    generator = torch.Generator().manual_seed(1)
    truths = torch.rand(tiles, *shape, generator=generator) if truths is None else truths
    tiles = len(truths)
    names = tuple(f"class {i}" for i in range(tiles))
    galleries = tuple(
        Gallery(
            name=f"attack {a}",
            note="a note",
            tiles=tuple(
                build_tile(truth, seed=a * tiles + i, frames=frames, last=40 + 3 * i, label=names[i])
                for i, truth in enumerate(truths)
            ),
        )
        for a in range(attacks)
    )
    row = TableRow(
        attack="attack 0",
        content=rate(31, 32),
        convergence=rate(30, 32),
        label=None,
        mse=mean(2e-5),
        ssim=mean(0.9),
        steps=mean(120.0),
        outcomes={"converged": 30, "exhausted": 2, "diverged": 0},
    )
    levels = tuple(
        NoiseLevel(sigma=sigma, pictures=truths * (1 - 0.1 * i), content=rate(8 - i, 8), mse=mean(0.01 * i))
        for i, sigma in enumerate((0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1))
    )
    parts: dict[str, Any] = {
        "title": "demo",
        "headline": "From the update alone, 31 of 32 private pictures were recovered",
        "explanation": "An explanation.",
        "rows": (row,),
        "rule": "Recovered means close.",
        "speed": "96 attacks in 41 s; the usual loop here: 338 s",
        "update": {
            "conv.weight": torch.randn(4, 1, 5, 5, generator=generator),
            "conv.bias": torch.randn(4, generator=generator),
        },
        "knowledge": "It was told nothing else.",
        "exact": Exact(
            note="By division.", pairs=tuple(Pair(truth=t, recovered=t, label="boot", mse=0.0) for t in truths)
        ),
        "galleries": galleries,
        "noise": NoiseSweep(note="Noise.", truths=truths, labels=names, levels=levels),
        "provenance": Provenance(
            version="leakscope 0.1.0", command="leakscope demo", date="a day", machine="2 cores", seeds="0 to 31"
        ),
        "limits": "Small pictures only.",
    }
    return Page(**(parts | changes))


@pytest.fixture(scope="session")
def make_tile() -> MakeTile:
    return build_tile


@pytest.fixture(scope="session")
def make_page() -> MakePage:
    return build_page
