"""The table of label rules, and which one an attack's `labels` means."""

from __future__ import annotations

from torch import Tensor

from leakscope.attacks.label_rules.choice import by_residual
from leakscope.attacks.label_rules.counts import calibrated, counts
from leakscope.attacks.label_rules.head import LabelRule, check_signs, last_dense
from leakscope.attacks.label_rules.ilrg import ilrg
from leakscope.attacks.label_rules.negative_classes import analytic, bias_corrected
from leakscope.attacks.label_rules.one_example import cpl, idlg
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation


def known(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the labels that the attacker knows."""
    del model, observation, key
    if knowledge.labels is None:
        raise InputError("label rule 'known' needs Knowledge.labels; use 'idlg', 'cpl', 'counts' or 'joint' instead")
    return knowledge.labels


def chosen_rule(labels: str, samples: int, *, known: bool) -> str:
    """Return the rule that an attack's `labels` means; 'auto' uses known labels, else the rule for this number of examples.

    >>> chosen_rule("auto", 1, known=False), chosen_rule("auto", 4, known=False), chosen_rule("idlg", 1, known=True)
    ('cpl', 'by_residual', 'idlg')
    """
    if labels != "auto":
        return labels
    return "known" if known else ("cpl" if samples == 1 else "by_residual")


def check_head(rule: str, model: Model) -> None:
    """Raise if a rule cannot read labels from the last layer of this network."""
    if last_dense(model).bias is None and rule != "idlg":
        check_signs(model)


LABEL_RULES: dict[str, LabelRule] = {
    "known": known,
    "idlg": idlg,
    "cpl": cpl,
    "counts": counts,
    "calibrated": calibrated,
    "ilrg": ilrg,
    "analytic": analytic,
    "bias_corrected": bias_corrected,
    "by_residual": by_residual,
}
JOINT = "joint"
