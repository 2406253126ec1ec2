"""The threat models A to H of Carletti et al., "SoK: Gradient Inversion Attacks in Federated Learning", USENIX Security 2025.

Their table (repository gparrella12/sok_gias_fl) grants each attacker model updates and more:

| | basic knowledge | training details | surrogate data | client data distribution | manipulates the model | selects clients |
|---|---|---|---|---|---|---|
| A | | | | | | |
| B | x | | | | | |
| C | x | x | | | | |
| D | x | x | x | | | |
| E | x | x | x | x | | |
| F | x | x | | | x | |
| G | x | x | x | | x | |
| H | x | x | x | | x | x |

Attackers of scenarios and audits know the range of inputs, so at least B. A curious server is at most E, a malicious one
(`leakscope.servers`) F, or G with public data.
"""

from __future__ import annotations

from enum import Enum


class ThreatModel(Enum):
    """A letter of the SoK with its name."""

    A = "Eavesdropper"
    B = "Informed Eavesdropper"
    C = "Parameter-Aware Eavesdropper"
    D = "Data-Enhanced Eavesdropper"
    E = "Statistical-Informed Eavesdropper"
    F = "Active Manipulator"
    G = "Data-Enhanced Manipulator"
    H = "Active Client Manipulator"

    def __str__(self) -> str:
        return f"{self.name} ({self.value})"


def threat_model_of(
    *, local: bool, public: bool = False, statistics: bool = False, manipulates: bool = False
) -> ThreatModel:
    """Return the first model that grants all that an attacker knows: local training, public examples, statistics
    of the batch, the choice of the weights.

    >>> print(threat_model_of(local=True))
    C (Parameter-Aware Eavesdropper)
    """
    if manipulates:
        return ThreatModel.G if public else ThreatModel.F
    if statistics:
        return ThreatModel.E
    if public:
        return ThreatModel.D
    return ThreatModel.C if local else ThreatModel.B


def in_letters(models: set[ThreatModel]) -> str:
    """Return the letters as a sentence for a page; "" for none."""
    named = " or ".join(str(model) for model in sorted(models, key=lambda model: model.name))
    return f"In the letters of Carletti et al. 2025: {named}." if named else ""
