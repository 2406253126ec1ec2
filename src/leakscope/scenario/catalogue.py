"""Every named component with a one-line description, read from the registries."""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.attacks.distances import DISTANCES
from leakscope.attacks.labels import JOINT, LABEL_RULES
from leakscope.attacks.optimisers import OPTIMISERS
from leakscope.attacks.priors import PRIORS
from leakscope.attacks.recipes import ATTACKS
from leakscope.attacks.simulate import SIMULATORS
from leakscope.attacks.starts import STARTS
from leakscope.attacks.tokens.readings import TEXT_ATTACKS
from leakscope.attacks.units import GAINS, OBJECTIVES
from leakscope.core.plugins import load_plugins, origin
from leakscope.core.registry import summary
from leakscope.data import SOURCES
from leakscope.data.partition import PARTITIONS
from leakscope.defences import DEFENCES
from leakscope.defences.on_data import Transform, parse_policies
from leakscope.defences.on_model import Polarisation
from leakscope.federated import SELECTIONS, SERVERS
from leakscope.learning.losses import LOSSES
from leakscope.metrics import METRICS
from leakscope.models import INITS, MODELS, TEXT_MODELS
from leakscope.servers import MANIPULATIONS

_PLAIN = {
    "patterned4": "A uniform tile repeated four times along each side (CPL's 4*4)",
    "dark": "Black everywhere",
    "light": "White everywhere",
    "red": "The first channel at 1, the others at 0",
    "green": "The second channel at 1, the others at 0",
    "blue": "The third channel at 1, the others at 0",
}
# the policies of the ATS paper, for CIFAR-100 and for Fashion-MNIST; in a hybrid each image draws one
POLICIES = ("3-1-7", "43-18-18", "3-1-7+43-18-18", "19-15-45", "2-43-21", "19-15-45+2-43-21")


def catalogue() -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name, line) for every component; the line of a registered one ends with its module."""
    load_plugins()
    for name, source in SOURCES.items():
        yield "data", name, source.description + _from("data set", name)
    tables: tuple[tuple[str, dict[str, object]], ...] = (
        ("model", {**MODELS, **TEXT_MODELS}),
        ("initialisation", dict(INITS)),
        ("attack", {**ATTACKS, **TEXT_ATTACKS}),
        ("start", dict(STARTS)),
        ("label rule", dict(LABEL_RULES)),
        ("distance", dict(DISTANCES)),
        ("objective", dict(OBJECTIVES)),
        ("gain", dict(GAINS)),
        ("prior", dict(PRIORS)),
        ("simulator", dict(SIMULATORS)),
        ("optimiser", dict(OPTIMISERS)),
        ("loss", dict(LOSSES)),
        ("defence", dict(DEFENCES)),
        ("partition", dict(PARTITIONS)),
        ("selection", dict(SELECTIONS)),
        ("server", dict(SERVERS)),
        ("manipulation", dict(MANIPULATIONS)),
    )
    for kind, table in tables:
        for name, component in table.items():
            yield kind, name, (_PLAIN.get(name) or summary(component)) + _from(kind, name)
        if kind == "label rule":
            yield kind, JOINT, "Label logits are optimised together with the guess (DLG)"
        if kind == "defence":
            yield "defence on the model", "client.on_model", summary(Polarisation)
            yield "defence on the data", "client.on_data", summary(Transform)
            yield from (("policy on the data", name, _in_words(name)) for name in POLICIES)
    for name, metric in METRICS.items():
        yield "metric", name, metric.summary + _from("metric", name)


def _from(kind: str, name: str) -> str:
    """Return in words which module registered a component; "" for a built-in one."""
    module = origin(kind, name)
    return "" if module is None else f" (from {module})"


def _in_words(policy: str) -> str:
    """Return the operations of a policy in words.

    >>> _in_words("7+3")
    'translate_y +-0.1007 of the side; or translate_x +-0.4532 of the side'
    """
    return "; or ".join(", then ".join(op.words for op in one.operations) for one in parse_policies(policy))
