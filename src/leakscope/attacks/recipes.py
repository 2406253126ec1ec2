"""The published attacks with their published settings as defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.cpa import cpa
from leakscope.attacks.deep_prior import deep_prior
from leakscope.attacks.dlfa import dlfa
from leakscope.attacks.exact.analytic import Analytic
from leakscope.attacks.exact.linear_system import LinearSystem
from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.attacks.feature_inversion import feature_inversion
from leakscope.attacks.known_policy import ig_policy
from leakscope.attacks.labels import JOINT
from leakscope.attacks.null import PriorOnly
from leakscope.attacks.optimisers import Rule
from leakscope.attacks.optimisers.rules import into_box
from leakscope.attacks.polarised import spn_aware, spn_head, spn_unaware
from leakscope.attacks.priors import GUESS, LabelRegulariser, PositionGradient
from leakscope.attacks.pulled import spn_pull
from leakscope.attacks.settings import AdamSettings, LBFGSSettings, adam_attack, lbfgs_attack
from leakscope.attacks.starts import Normal
from leakscope.attacks.surrogate import ig_update, sme
from leakscope.attacks.translate import ig_affine, ig_shift
from leakscope.attacks.view import Prior
from leakscope.attacks.vision import gradinversion, modern, with_statistics
from leakscope.core.errors import InputError
from leakscope.core.signature import settings_of


@settings_of(lbfgs_attack, without=("labels",), start=Normal(), labels=JOINT)
def dlg(**settings: Unpack[LBFGSSettings]) -> Matching:
    """Deep leakage from gradients (Zhu et al. 2019): image and label logits from N(0, 1), optimised together by L-BFGS.

    The authors stop after 300 steps; the threshold is CPL's, so that convergence means the same for both.

    Equation: `min over x, y of ||grad l(w, x, softmax y) - g||^2`, from x, y in N(0, 1).
    Reference: Zhu, Liu and Han 2019, Deep leakage from gradients, arXiv:1906.08935.
    Works when: one or a few examples, a smooth activation, weights that are not trained far; no defence, or a weak one.
    Costs: 300 iterations of L-BFGS, each up to 20 evaluations with a second derivative; labels are unknowns too.
    """
    return lbfgs_attack("dlg", **settings)


@settings_of(lbfgs_attack, start=Normal(), labels="idlg")
def idlg(**settings: Unpack[LBFGSSettings]) -> Matching:
    """Improved DLG (Zhao et al. 2020): the label is inferred from the gradient, then only the image is optimised.

    Equation: `y = argmin_k dL/db_k`, then `min over x of ||grad l(w, x, y) - g||^2`.
    Reference: Zhao, Mopuri and Bilen 2020, iDLG, arXiv:2001.02610.
    Works when: one example, cross entropy, the last layer shared; else as dlg.
    Costs: as dlg, with fewer unknowns.
    """
    return lbfgs_attack("idlg", **settings)


@settings_of(lbfgs_attack)
def cpl(*, alpha: float = 0.0, **settings: Unpack[LBFGSSettings]) -> Matching:
    """Client privacy leakage (Wei et al. 2020): patterned start, label by argmin, L-BFGS, stop under 1e-4.

    `alpha` weighs the label regulariser of Algorithm 1; the authors' runs leave it off.

    Equation: `y = argmin_k dL/db_k`, then `min over x of ||grad l(w, x, y) - g||^2 + alpha ||f(w, x) - y||^2`.
    Reference: Wei et al. 2020, A framework for evaluating client privacy leakages, arXiv:2004.10397, Algorithm 1.
    Works when: as dlg; the patterned start makes it converge more often. Several examples need known or counted labels.
    Costs: 300 iterations of L-BFGS at most, each up to 20 evaluations; it ends at a mismatch under 1e-4.
    """
    if alpha < 0:
        raise InputError(f"cpl(alpha=...) must not be below 0, got {alpha}")
    return replace(lbfgs_attack("cpl", **settings), priors=(LabelRegulariser(alpha),) if alpha else ())


@settings_of(adam_attack, without=("decay",))
def ig(*, bn: float = 0.0, position: float = 0.0, **settings: Unpack[AdamSettings]) -> Matching:
    """Inverting gradients (Geiping et al. 2020): 1 - cosine + TV, signed Adam, rate x0.1 at 3/8, 5/8, 7/8, boxed.

    `bn` weighs a prior on the statistics of batch norm (see gradinversion), `position` the gradient of a transformer's position embedding
    (APRIL, Lu et al. 2022, arXiv:2112.14087); the authors have neither.

    Equation: `min over x in the box of 1 - cos(grad l(w, x, y), g) + tv TV(x)`.
    Reference: Geiping et al. 2020, Inverting gradients, arXiv:2003.14053, Eq. 4.
    Works when: images, deep and trained networks, several examples; invariant to the length of an update, so also to clipping.
    Costs: 4800 evaluations with a second derivative.
    """
    if not position >= 0:
        raise InputError(f"ig(position=...) must not be below 0, got {position}")
    attack = with_statistics(adam_attack("ig", **settings), bn)
    april = (PositionGradient(weight=position),) if position else ()
    return replace(attack, priors=(*attack.priors, *april))


@settings_of(lbfgs_attack, threshold=0.0)
def matching(
    *,
    priors: tuple[Prior, ...] = (),
    signed: bool = False,
    boxed: bool = False,
    patience: int | None = None,
    film_end: bool = False,
    **settings: Unpack[LBFGSSettings],
) -> Matching:
    """A gradient-matching attack from components of your choice: start, objective, priors, optimiser, sign and box.

    `boxed` projects the guess into the valid box after every step, `signed` takes the sign of its gradient, `patience` ends a
    trial without progress for that many iterations, `film_end` keeps the guesses of the last iterations (for their image MSE).

    Equation: `min over x of distance(grad l(w, x, y), g) + sum of priors`.
    Reference: None: the loop that all published attacks on gradients share.
    Works when: its components suit the network and the data; it corresponds to no published result.
    Costs: `iterations` steps of the optimiser given; L-BFGS takes up to 20 evaluations a step, Adam one.
    """
    attack = lbfgs_attack("matching", **settings)
    rules = {GUESS: Rule(sign=signed, project=into_box if boxed else None)}
    return replace(attack, priors=priors, rules=rules, stop=replace(attack.stop, patience=patience, film_end=film_end))


def analytic(*, threshold: float = 1e-3) -> Analytic:
    """Exact recovery from a first dense layer with bias (Aono et al. 2017): row gradient over bias gradient.

    Equation: `x = dL/dW_k / dL/db_k` for every unit k of the first layer; units weighted by `(dL/db_k)^2`.
    Reference: Aono et al. 2017; Phong et al. 2018, Privacy-preserving deep learning via additively homomorphic encryption.
    Works when: the first layer is dense with a bias; exact for one example. For more, only units that one example activates.
    Costs: one division per unit, negligible compared with any other attack.
    """
    return Analytic(threshold=threshold)


def peeling(*, draws: int = 2**10) -> Peeling:
    """Exact recovery of a batch from a first dense layer with ReLU: divide, certify by the network, subtract, repeat.

    Where it stalls, `spear` unmixes what is left from `draws` starts.

    Equation: `x = G_j / h_j` is a sample of label l if `h_j = c dL(x, l)/dz_j` on every unit j that gives x; then `G -= c dL/dz x^T`.
    Reference: Shariati and Alambardar Meybodi 2026, Cascading gradient inversion via LT-code inspired peeling.
    Works when: one gradient of a network that begins with a dense layer with ReLU; up to a batch of about the units / 10.
    Costs: a forward pass and one backward pass per class for every unit and round, in float64.
    """
    return Peeling(draws=draws)


def spear(*, draws: int = 2**13) -> Peeling:
    """Exact recovery of a batch from a first dense layer with ReLU: sparse directions of its gradient (Dimitrov et al. 2024).

    Equation: `G = L R` of rank b; the b sparsest independent `L q` make Q, then `D^T = L Q` and `X = Q^-1 R`.
    Reference: Dimitrov et al. 2024, SPEAR, arXiv:2403.03945; Bakarsky et al. 2025, SPEAR++, arXiv:2510.24200.
    Works when: as peeling, also where no unit has a sample alone; units at least twice the batch, batches up to about 20.
    Costs: a descent over the units from each of `draws` starts at most, 128 at a time; seconds to minutes for a batch of 20 at 200 units.
    """
    return Peeling("spear", divide=False, draws=draws)


def linear_system(*, threshold: float = 1e-3) -> LinearSystem:
    """Theorem 2.1 of the SPN paper (Fan et al. 2020): solve B x = W for one sample and a first dense layer with bias.

    Equation: `B x = W` with B the bias gradients on a diagonal and W the weight gradients of the first layer.
    Reference: Fan et al. 2020, Rethinking privacy preserving deep learning, arXiv:2006.11601, Theorem 2.1.
    Works when: one example, a first dense layer with a bias, one unit whose bias gradient stands out from the noise.
    Costs: one division per input.
    """
    return LinearSystem(threshold=threshold)


@settings_of(ig, without=("bn", "objective", "tv", "labels", "threshold", "restarts"), iterations=100)
def prior_only(**settings: Unpack[AdamSettings]) -> PriorOnly:
    """A null baseline: `ig` without the update, so that total variation alone moves its start (Norm for a table).

    `PriorOnly(attack)` does the same to any attack.

    Equation: `min over x in the box of TV(x)`.
    Reference: None: a null baseline.
    Works when: always: it shows what an attacker gets without any update.
    Costs: 100 steps that run no network.
    """
    return PriorOnly(ig(**settings))


ATTACKS: dict[str, Callable[[], Attack]] = {
    "dlg": dlg,
    "idlg": idlg,
    "cpl": cpl,
    "ig": ig,
    "modern": modern,
    "gradinversion": gradinversion,
    "deep_prior": deep_prior,
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
    "peeling": peeling,
    "spear": spear,
    "cpa": cpa,
    "feature_inversion": feature_inversion,
    "linear_system": linear_system,
    "prior_only": prior_only,
}
