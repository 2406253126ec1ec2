"""An attack made of leakscope's parts."""

from dataclasses import replace

from leakscope.attacks import Adam, Match, Matching, Patterned, TotalVariation, cosine, matching


def ig_patterned(*, tiles: int = 2, tv: float = 1e-4, rate: float = 0.05, iterations: int = 1200) -> Matching:
    """IG from CPL's patterned start: 1 - cosine + TV, signed Adam, boxed; ends after 200 steps without gain.

    Equation: `min over x in the box of 1 - cos(grad l(w, x, y), g) + tv TV(x)`, from a repeated tile.
    Reference: None: Geiping et al. 2020 (arXiv:2003.14053, Eq. 4) with the start of Wei et al. 2020 (arXiv:2004.10397).
    Works when: as ig, on few examples.
    Costs: 1200 evaluations with a second derivative at most.
    """
    attack = matching(
        start=Patterned(tiles),
        objective=Match(cosine),
        priors=(TotalVariation(tv),),
        optimiser=Adam(rate),
        signed=True,
        boxed=True,
        iterations=iterations,
        patience=200,
    )
    return replace(attack, name="ig_patterned")
