"""The published attacks with their published settings; every setting can be changed."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.attacks.analytic import Analytic
from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.dlfa import dlfa
from leakscope.attacks.known_policy import ig_policy
from leakscope.attacks.labels import JOINT
from leakscope.attacks.linear_system import LinearSystem
from leakscope.attacks.null import PriorOnly
from leakscope.attacks.objectives import Match, cosine, squared_l2
from leakscope.attacks.optimisers import LBFGS, Adam, Optimiser, Rule, Steps
from leakscope.attacks.polarised import spn_aware, spn_head, spn_unaware
from leakscope.attacks.priors import GUESS, LabelRegulariser, TotalVariation
from leakscope.attacks.projections import into_box
from leakscope.attacks.pulled import spn_pull
from leakscope.attacks.starts import Normal, Patterned, Start
from leakscope.attacks.state import Stop
from leakscope.attacks.surrogate import ig_update, milestones, sme
from leakscope.attacks.translate import ig_affine, ig_shift
from leakscope.attacks.view import Objective, Prior
from leakscope.core.errors import InputError


def dlg(
    *,
    start: Start = Normal(),  # noqa: B008  frozen
    objective: Objective = Match(squared_l2),  # noqa: B008  frozen
    optimiser: Optimiser = LBFGS(),  # noqa: B008  frozen
    iterations: int = 300,
    threshold: float = 1e-4,
    restarts: int = 1,
) -> Matching:
    """Deep leakage from gradients (Zhu et al. 2019): image and label logits from N(0, 1), optimised together by L-BFGS.

    The authors stop after 300 steps; the threshold is CPL's, so that convergence means the same for both.
    """
    stop = Stop(iterations=iterations, threshold=threshold)
    return Matching(
        "dlg", start=start, objective=objective, labels=JOINT, optimiser=optimiser, stop=stop, restarts=restarts
    )


def idlg(
    *,
    start: Start = Normal(),  # noqa: B008  frozen
    objective: Objective = Match(squared_l2),  # noqa: B008  frozen
    optimiser: Optimiser = LBFGS(),  # noqa: B008  frozen
    labels: str = "idlg",
    iterations: int = 300,
    threshold: float = 1e-4,
    restarts: int = 1,
) -> Matching:
    """Improved DLG (Zhao et al. 2020): the label is read off the gradient, then only the image is optimised."""
    stop = Stop(iterations=iterations, threshold=threshold)
    return Matching(
        "idlg", start=start, objective=objective, labels=labels, optimiser=optimiser, stop=stop, restarts=restarts
    )


def cpl(
    *,
    start: Start = Patterned(),  # noqa: B008  frozen
    objective: Objective = Match(squared_l2),  # noqa: B008  frozen
    optimiser: Optimiser = LBFGS(),  # noqa: B008  frozen
    labels: str = "auto",
    alpha: float = 0.0,
    iterations: int = 300,
    threshold: float = 1e-4,
    restarts: int = 1,
) -> Matching:
    """Client privacy leakage (Wei et al. 2020): patterned start, label by argmin, L-BFGS, stop under 1e-4.

    `alpha` weighs the label regulariser of Algorithm 1; the authors' runs leave it off.
    """
    if alpha < 0:
        raise InputError(f"cpl(alpha=...) must not be below 0, got {alpha}")
    priors: tuple[Prior, ...] = (LabelRegulariser(alpha),) if alpha else ()
    stop = Stop(iterations=iterations, threshold=threshold)
    return Matching(
        "cpl",
        start=start,
        objective=objective,
        priors=priors,
        labels=labels,
        optimiser=optimiser,
        stop=stop,
        restarts=restarts,
    )


def ig(
    *,
    start: Start = Normal(),  # noqa: B008  frozen
    objective: Objective = Match(cosine),  # noqa: B008  frozen
    rate: float = 0.1,
    tv: float = 1e-4,
    signed: bool = True,
    labels: str = "auto",
    iterations: int = 4800,
    threshold: float = 0.0,
    restarts: int = 1,
) -> Matching:
    """Inverting gradients (Geiping et al. 2020): 1 - cosine + TV, signed Adam, rate x0.1 at 3/8, 5/8, 7/8, boxed."""
    if tv < 0:
        raise InputError(f"ig(tv=...) must not be below 0, got {tv}")
    guess = Rule(sign=signed, schedule=Steps(milestones(iterations)), project=into_box)
    return Matching(
        "ig",
        start=start,
        objective=objective,
        priors=(TotalVariation(tv),) if tv else (),
        labels=labels,
        optimiser=Adam(rate),
        rules={GUESS: guess},
        stop=Stop(iterations=iterations, threshold=threshold),
        restarts=restarts,
    )


def matching(
    *,
    start: Start = Patterned(),  # noqa: B008  frozen
    objective: Objective = Match(squared_l2),  # noqa: B008  frozen
    priors: tuple[Prior, ...] = (),
    optimiser: Optimiser = LBFGS(),  # noqa: B008  frozen
    labels: str = "auto",
    signed: bool = False,
    boxed: bool = False,
    iterations: int = 300,
    threshold: float = 0.0,
    patience: int | None = None,
    restarts: int = 1,
) -> Matching:
    """An attack of your own pieces: any start, objective, priors and optimiser; sign and box as you like.

    `boxed` keeps the guess inside the valid box after every step, `signed` takes the sign of its gradient, `patience` ends a
    trial that gained nothing for so many iterations.
    """
    return Matching(
        "matching",
        start=start,
        objective=objective,
        priors=priors,
        labels=labels,
        optimiser=optimiser,
        rules={GUESS: Rule(sign=signed, project=into_box if boxed else None)},
        stop=Stop(iterations=iterations, threshold=threshold, patience=patience),
        restarts=restarts,
    )


def analytic() -> Analytic:
    """Exact recovery from a first dense layer with bias (Aono et al. 2017): row gradient over bias gradient."""
    return Analytic()


def linear_system() -> LinearSystem:
    """Theorem 2.1 of the SPN paper (Fan et al. 2020): solve B x = W for one sample and a first dense layer with bias."""
    return LinearSystem()


def prior_only(
    *,
    start: Start = Normal(),  # noqa: B008  frozen
    rate: float = 0.1,
    signed: bool = True,
    iterations: int = 100,
) -> PriorOnly:
    """A null baseline: `ig` without the update, so that total variation alone moves its start (Norm for a table).

    To silence another attack: `PriorOnly(attack)`.
    """
    return PriorOnly(ig(start=start, rate=rate, signed=signed, iterations=iterations))


ATTACKS: dict[str, Callable[[], Attack]] = {
    "dlg": dlg,
    "idlg": idlg,
    "cpl": cpl,
    "ig": ig,
    "ig_shift": ig_shift,
    "ig_affine": ig_affine,
    "ig_policy": ig_policy,
    "ig_update": ig_update,
    "sme": sme,
    "dlfa": dlfa,
    "spn_unaware": spn_unaware,
    "spn_aware": spn_aware,
    "spn_head": spn_head,
    "spn_pull": spn_pull,
    "matching": matching,
    "analytic": analytic,
    "linear_system": linear_system,
    "prior_only": prior_only,
}
