"""leakscope measures how much of a client's private training data leaks through the update it shares.

These names are the stable API, documented in `docs/reference/api.md` and loaded on first use. Components are in `leakscope.attacks`,
`leakscope.defences`, `leakscope.metrics`, `leakscope.data` and `leakscope.models`.
"""

from __future__ import annotations

import sys

# `python -m leakscope` puts the working directory first, so torch would import its mpmath.py; it goes unless leakscope came from there.
if (
    sys.argv[:1] == ["-m"]
    and {"leakscope", "-mleakscope"} & {*sys.orig_argv}
    and not sys.flags.safe_path
    and f"{sys.path[0]}/leakscope" not in __path__
):
    del sys.path[0]

from typing import TYPE_CHECKING

from leakscope.core.lazy import load_lazily
from leakscope.core.version import __version__ as __version__

if TYPE_CHECKING:
    from leakscope.attacks.aware import aware as aware
    from leakscope.attacks.dlfa import dlfa as dlfa
    from leakscope.attacks.engine.plan import Execution as Execution
    from leakscope.attacks.recipes import analytic as analytic, cpl as cpl, dlg as dlg, idlg as idlg, ig as ig
    from leakscope.attacks.surrogate import sme as sme
    from leakscope.auditing import Audit as Audit, Target as Target, audit as audit, audit_captures as audit_captures
    from leakscope.guarding.history import GuardHistory as GuardHistory
    from leakscope.guarding.settings import Decision as Decision, GuardSettings as GuardSettings
    from leakscope.guarding.guard import guard as guard
    from leakscope.auditing.static.inspection import Inspection as Inspection, inspect as inspect
    from leakscope.clients import (
        Client as Client, knowledge_of_defences as knowledge_of_defences, attacker_knowledge as attacker_knowledge,
    )  # fmt: skip
    from leakscope.clients.private import PrivateClient as PrivateClient
    from leakscope.core import random as random, tree as tree
    from leakscope.core.errors import InputError as InputError
    from leakscope.core.progress import ProgressEvent as ProgressEvent
    from leakscope.core.random import key as key
    from leakscope.core.types import (
        Batch as Batch, Knowledge as Knowledge, LocalTraining as LocalTraining, Observation as Observation,
        Outcome as Outcome, Reconstruction as Reconstruction, Shares as Shares, direction as direction,
        make_batch as make_batch,
    )  # fmt: skip
    from leakscope.data import load as load
    from leakscope.defences import (
        ChosenNoise as ChosenNoise, Clip as Clip, DeepCompression as DeepCompression, GaussianNoise as GaussianNoise,
        LaplaceNoise as LaplaceNoise, LowRank as LowRank, Polarisation as Polarisation, Quantise as Quantise,
        RandomMask as RandomMask, Sign as Sign, Sparsify as Sparsify, Transform as Transform,
    )  # fmt: skip
    from leakscope.metrics import Scores as Scores, Summary as Summary, score as score, summarise as summarise
    from leakscope.models import (
        Uniform as Uniform, build as build, draw_parameters as draw_parameters, from_module as from_module,
    )  # fmt: skip
    from leakscope.peeking import peek as peek
    from leakscope.play.dishonest import ManipulationResult as ManipulationResult, manipulate as manipulate
    from leakscope.play.baselines import baselines as baselines, public_part as public_part
    from leakscope.scenario import ScenarioError as ScenarioError, scenario_of as scenario_of
    from leakscope.scenario.registration import (
        register_attack as register_attack, register_data as register_data, register_defence as register_defence,
        register_metric as register_metric, register_model as register_model,
    )  # fmt: skip
    from leakscope.scanning.scan import Scan as Scan, scan as scan
    from leakscope.store import Recording as Recording, Run as Run
    from leakscope.store.recorder import capture as capture
    from leakscope.sweep import engines as engines, run_scenario as run_scenario
else:
    load_lazily(__name__)
