"""leakscope measures how much of a client's private training data leaks through the update it shares.

The names here are the stable ones; `docs/api.md` says what each is for. They are loaded on first use, so that importing the
package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from leakscope.core.version import __version__

# where each stable name is found; the imports for type checkers say the same, and a test compares them
SOURCES = {
    "leakscope.attacks.aware": ("aware",),
    "leakscope.attacks.dlfa": ("dlfa",),
    "leakscope.attacks.engine.plan": ("Execution",),
    "leakscope.attacks.recipes": ("analytic", "cpl", "dlg", "idlg", "ig"),
    "leakscope.attacks.surrogate": ("sme",),
    "leakscope.clients": ("Client", "tell_defences", "told"),
    "leakscope.core.errors": ("InputError",),
    "leakscope.core.random": ("key",),
    "leakscope.core.types": ("Batch", "Knowledge", "LocalTraining", "Observation", "Reconstruction", "make_batch"),
    "leakscope.data": ("load",),
    "leakscope.defences": (
        "ChosenNoise",
        "Clip",
        "DeepCompression",
        "GaussianNoise",
        "LaplaceNoise",
        "LowRank",
        "Quantise",
        "RandomMask",
        "Sign",
        "Sparsify",
    ),
    "leakscope.defences.on_data": ("Transform",),
    "leakscope.defences.on_model": ("Polarisation",),
    "leakscope.auditing": ("Audit", "Target", "audit", "audit_captures"),
    "leakscope.scenario": ("scenario_of",),
    "leakscope.sweep": ("run_scenario",),
    "leakscope.metrics": ("Scores", "Summary", "score", "summarise"),
    "leakscope.models": ("Uniform", "build", "draw_parameters", "from_module"),
    "leakscope.peeking": ("peek",),
    "leakscope.store": ("Run",),
}
WHERE = {name: module for module, names in SOURCES.items() for name in names}

__all__ = [
    "Audit",
    "Batch",
    "ChosenNoise",
    "Client",
    "Clip",
    "DeepCompression",
    "Execution",
    "GaussianNoise",
    "InputError",
    "Knowledge",
    "LaplaceNoise",
    "LocalTraining",
    "LowRank",
    "Observation",
    "Polarisation",
    "Quantise",
    "RandomMask",
    "Reconstruction",
    "Run",
    "Scores",
    "Sign",
    "Sparsify",
    "Summary",
    "Target",
    "Transform",
    "Uniform",
    "__version__",
    "analytic",
    "audit",
    "audit_captures",
    "aware",
    "build",
    "cpl",
    "dlfa",
    "dlg",
    "draw_parameters",
    "from_module",
    "idlg",
    "ig",
    "key",
    "load",
    "make_batch",
    "peek",
    "run_scenario",
    "scenario_of",
    "score",
    "sme",
    "summarise",
    "tell_defences",
    "told",
]

if TYPE_CHECKING:
    from leakscope.attacks.aware import aware
    from leakscope.attacks.dlfa import dlfa
    from leakscope.attacks.engine.plan import Execution
    from leakscope.attacks.recipes import analytic, cpl, dlg, idlg, ig
    from leakscope.attacks.surrogate import sme
    from leakscope.auditing import Audit, Target, audit, audit_captures
    from leakscope.clients import Client, tell_defences, told
    from leakscope.core.errors import InputError
    from leakscope.core.random import key
    from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, Reconstruction, make_batch
    from leakscope.data import load
    from leakscope.defences import (
        ChosenNoise,
        Clip,
        DeepCompression,
        GaussianNoise,
        LaplaceNoise,
        LowRank,
        Quantise,
        RandomMask,
        Sign,
        Sparsify,
    )
    from leakscope.defences.on_data import Transform
    from leakscope.defences.on_model import Polarisation
    from leakscope.metrics import Scores, Summary, score, summarise
    from leakscope.models import Uniform, build, draw_parameters, from_module
    from leakscope.peeking import peek
    from leakscope.scenario import scenario_of
    from leakscope.store import Run
    from leakscope.sweep import run_scenario
else:

    def __getattr__(name: str) -> object:
        """Load a stable name on first use."""
        if name not in WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(WHERE[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *WHERE})
