"""Pages to test with: small, but with every section, and any part replaceable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from leakscope.metrics.interval import Estimate, wilson
from leakscope.report import (
    Download,
    Exact,
    Fading,
    Gallery,
    Guess,
    Level,
    Page,
    Pair,
    Provenance,
    Row,
    Section,
    Strength,
    Threat,
    Tile,
)
from leakscope.report.charts import Line, Panel

SIGMAS = ("0", "0.0001", "0.001", "0.01", "0.1")
OUTCOMES = ("converged", "exhausted")


def rate(hits: int, n: int) -> Estimate:
    return Estimate(hits / n, *wilson(hits / n, n), n, n)


def mean(value: float) -> Estimate:
    return Estimate(value, 0.9 * value, 1.1 * value, 8, 8)


def build_tile(truth: Tensor, *, seed: int = 0, frames: int = 5, last: int = 40, **changes: Any) -> Tile:
    """Return a tile whose film goes from noise to the truth."""
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed))
    share = torch.linspace(0, 1, frames).view(-1, *[1] * truth.ndim)
    at = tuple(round(last * i / max(1, frames - 1)) for i in range(frames))
    parts: dict[str, Any] = {
        "truth": truth,
        "frames": (1 - share) * noise + share * truth if frames > 1 else truth[None],
        "frames_at": at,
        "axes": {"attack": "attack 0"},
        "number": seed,
        "label": "boot",
        "guess": "bag",
        "label_correct": False,
        "mse": 3.1e-7,
        "psnr": 65.1,
        "ssim": 0.998 if truth.ndim > 1 else None,
        "steps": at[-1],
        "outcome": "converged",
        "recovered": True,
        "trace": tuple(10.0 ** (1 - i) for i in range(6)),
        "trace_at": tuple(range(0, 60, 10)),
        "baselines": (Guess(name="class mean", picture=truth * 0.5, mse=0.04, ssim=0.3 if truth.ndim > 1 else None),),
    }
    return Tile(**(parts | changes))


def build_row(attack: str, values: Mapping[str, Any], *, baseline: bool = False, hits: int = 31) -> Row:
    return Row(
        attack=attack,
        values=values,
        baseline=baseline,
        cells=("c",),
        trials=32,
        samples=32,
        content=rate(hits, 32),
        convergence=None if baseline else rate(30, 32),
        label=None,
        mse=mean(2e-5),
        psnr=mean(47.0),
        ssim=mean(0.9),
        steps=None if baseline else mean(120.0),
        outcomes={"converged": 30, "exhausted": 2},
    )


def build_section() -> Section:
    values = tuple(rate(h, 32) for h in (32, 31, 30, 8, 0))
    panel = Panel(
        "Content recovered",
        "sigma",
        True,
        True,
        (Line("attack 0", tuple(float(s) for s in SIGMAS), values),),
        (("class mean", rate(1, 32)),),
    )
    rows = [build_row("attack 0", {"sigma": float(s)}, hits=h) for s, h in zip(SIGMAS, (32, 31, 30, 8, 0), strict=True)]
    rows.append(build_row("class mean", {}, baseline=True, hits=1))
    return Section(title="By sigma", note="A note.", axes=(("sigma", "sigma"),), rows=tuple(rows), panels=(panel,))


def build_strength(truths: Tensor, attacks: int = 2) -> Strength:
    return Strength(
        axis="sigma",
        note="Noise.",
        fadings=tuple(
            Fading(
                attack=f"attack {a}",
                truths=truths,
                labels=tuple(f"picture {i}" for i in range(len(truths))),
                levels=tuple(
                    Level(
                        strength=s,
                        pictures=truths * (1 - 0.2 * i) * (1 - 0.05 * a),
                        content=rate(8 - i, 8),
                        mse=mean(0.01 * i),
                        accuracy=0.9 - 0.1 * i if a == 0 else None,
                    )
                    for i, s in enumerate(SIGMAS)
                ),
            )
            for a in range(attacks)
        ),
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
    shown = tuple(
        build_tile(
            truth,
            seed=a * len(truths) + i,
            frames=frames,
            last=40 + 3 * i,
            label=f"picture {i}",
            axes={"attack": f"attack {a}"},
            number=i,
            mse=10.0 ** -(1 + a + i),
            ssim=0.2 + 0.1 * (a + i) if truth.ndim > 1 else None,
            recovered=a + i > 1,
            outcome=OUTCOMES[(a + i) % 2],
        )
        for a in range(attacks)
        for i, truth in enumerate(truths)
    )
    parts: dict[str, Any] = {
        "title": "demo",
        "headline": "From the update alone, 31 of 32 private pictures were recovered",
        "explanation": "An explanation.",
        "threat": Threat(
            words="Words.",
            setting=(("Network", ("lenet", "resnet")),),
            known=("the loss",),
            hidden=("the labels",),
            mixed=("the bound",),
        ),
        "rule": "Recovered means close.",
        "limits": "Small pictures only.",
        "provenance": Provenance(
            command="leakscope demo",
            facts=(("Version", "leakscope 0.1.0"), ("Seeds", "0 to 31")),
            scenario="name: demo\n",
            plan="{}",
        ),
        "download": Download(name="demo.csv", text="trial,mse\r\na,0.5\r\n", note="one line"),
        "sections": (build_section(),),
        "every": dataclasses.replace(build_section(), title="Every setting", panels=()),
        "speed": "96 attacks in 41 s; the usual loop here: 338 s",
        "update": {
            "conv.weight": torch.randn(4, 1, 5, 5, generator=generator),
            "conv.bias": torch.randn(4, generator=generator),
        },
        "exact": Exact(
            note="By division.", pairs=tuple(Pair(truth=t, recovered=t, label="boot", mse=0.0) for t in truths)
        ),
        "strengths": (build_strength(truths),),
        "gallery": Gallery(note="All.", axes=(("attack", "attack"),), tiles=shown, total=len(shown)),
    }
    return Page(**(parts | changes))


@pytest.fixture(scope="session")
def make_tile() -> Callable[..., Tile]:
    return build_tile


@pytest.fixture(scope="session")
def make_page() -> Callable[..., Page]:
    return build_page
