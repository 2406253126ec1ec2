"""What the catalogue says of pieces whose own docstring does not say it yet: equation, reference, works when, costs.

A docstring stands above this table: `tools/catalogue.py` refuses a note that a docstring has as well, so that nothing is said twice.
"""

from __future__ import annotations

ATS = "Gao et al. 2021, arXiv:2011.12505"
RE_ATS = "[Re] Privacy-preserving collaborative learning with automatic transformation search, section 3.1"
SPN = "Fan et al. 2020, Rethinking privacy preserving deep learning, arXiv:2006.11601"
SME = "Zhu, Yao and Blaschko 2023, Surrogate model extension, arXiv:2306.00127"

NOTES: dict[str, dict[str, str]] = {
    "ig_shift": {
        "Equation": "`min over x, t of 1 - cos(grad l(w, shift(x, t), y), g) + tv TV(x)`, t within its bounds.",
        "Reference": f"{RE_ATS}; of the defence of {ATS}.",
        "Works when": "the client moved its pictures, and bounds on how far are known or guessed.",
        "Costs": "as ig, and one resampling of the guess a step.",
    },
    "ig_affine": {
        "Equation": "`min over x, A of 1 - cos(grad l(w, A(x), y), g) + tv TV(x)`, with A a 2 x 3 matrix for each picture.",
        "Reference": "After ig_shift; the map is that of Jaderberg et al. 2015, arXiv:1506.02025.",
        "Works when": "the client rotated, sheared or moved its pictures. It has more freedom than ig_shift, so it can fail in more ways.",
        "Costs": "as ig_shift.",
    },
    "ig_policy": {
        "Equation": "`min over x and draws of 1 - cos(grad l(w, T(x), y), g) + tv TV(x)`, T as known, every draw tried.",
        "Reference": f"Not in the papers; the defence is that of {ATS}.",
        "Works when": "the policy is known and T can be differentiated. What T discards is not recovered.",
        "Costs": "as ig, times the number of possible draws (at most 64; above that they are optimised).",
    },
    "ig_update": {
        "Equation": "`min over x in the box of 1 - cos(grad l(w0, x, y), w0 - wT) + tv TV(x)`.",
        "Reference": f"{SME}, as its baseline.",
        "Works when": "local steps are few and short, so that the update still points along the first gradient.",
        "Costs": "1000 evaluations with a second derivative.",
    },
    "sme": {
        "Equation": "`min over x, a in [0, 1] of 1 - cos(grad l((1 - a) w0 + a wT, x, y), w0 - wT) + tv TV(x)`.",
        "Reference": f"{SME}, Eq. 5.",
        "Works when": "local steps stay near a plane and the loss falls: untrained networks, up to about fifty examples, plain SGD.",
        "Costs": "1000 evaluations, each about 1.3 of ig_update's. Needs no knowledge of the local training.",
    },
    "dlfa": {
        "Equation": "`min over x_1..x_E of sum_l e^-l ||difference of layer l||^2 / rate^2 + invariant L_inv + TV + box`.",
        "Reference": "Dimitrov et al. 2022, Data leakage in federated averaging, arXiv:2206.12395.",
        "Works when": "epochs, batch size and rate are known, and the network is untrained.",
        "Costs": "every iteration simulates all local steps forwards and backwards; memory grows with the root of their number.",
    },
    "spn_unaware": {
        "Equation": "`min over x, y of ||grad CE(w, x, softmax y) - g||^2`, though g holds a private part.",
        "Reference": f"{SPN}, algorithm 5.",
        "Works when": "there is no private head, or its weight is near 0. It is the attacker that the paper reports.",
        "Costs": "as dlg.",
    },
    "spn_aware": {
        "Equation": "`min over x, V, t of ||grad (a1 CE + a2 sum_k max(m - v_k t_k, 0)) - g||^2`, V and t a dummy head and codes.",
        "Reference": f"Beyond the paper; the defence is that of {SPN}.",
        "Works when": "a private head is known to exist. The assumed weight matters little.",
        "Costs": "as cpl, with bits x features more unknowns.",
    },
    "spn_head": {
        "Equation": "`min over x of ||a1 (p - y) h^T - dL/dW||^2 + ||a1 (p - y) - dL/db||^2` of the public head alone.",
        "Reference": f"Beyond the paper; the defence is that of {SPN}.",
        "Works when": "the head has as many features as the picture has pixels, or a prior makes up for the rest.",
        "Costs": "as cpl, with less to compare. What it sees does not depend on the strength of the defence.",
    },
    "spn_pull": {
        "Equation": "`min over x, r of ||grad (a1 CE + mean_i r_i . h_i) - g||^2`, r_i the slope of the private loss at the features.",
        "Reference": f"Beyond the paper; the defence is that of {SPN}.",
        "Works when": "any private head is known to exist; nothing else about it needs to be known.",
        "Costs": "as cpl, with one more unknown a feature and example.",
    },
    "dp_sgd": {
        "Equation": "`g = 1/B (sum_i m_i g_i min(1, C / ||g_i||) + multiplier C z)`, z in N(0, I), m_i = 1 with probability B / N.",
        "Reference": "Abadi et al. 2016, Deep learning with differential privacy, arXiv:1607.00133, Algorithm 1.",
        "Works when": "epsilon is small: it then bounds every attacker, known or not. At a large epsilon nothing is promised.",
        "Costs": "accuracy, more with a larger multiplier; a gradient for every example by itself.",
    },
}
