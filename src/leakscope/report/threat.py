"""The threat model of a sweep in words: who was attacked, and what the attacker knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakscope.core.record import UNKNOWN_DEFENCES, Cell, nobody_knows
from leakscope.core.threat_models import ThreatModel, in_letters, threat_model_of
from leakscope.report.cells import all_unknown, axis_value_text, knows_head, manipulation_in, simulates_if_informed
from leakscope.report.page_data import DISHONEST, HONEST, Threat

KNOWLEDGE, DEFENCE = "knowledge", "defence"
ALWAYS_KNOWN = (
    "the network and the weights the client started from",
    "the update the client sent",
    "the loss, and the shape and range of an input",
    "how many samples the client holds",
)
ALWAYS_HIDDEN = ("the private inputs",)
FACTS = {
    "labels": "the labels of the private inputs",
    "local": "how the client trains: epochs, batch size, rate, optimiser",
    "order": "which sample each local step took",
    "public": "public examples of the same kind",
    "mask": "which coordinates were sent",
    "bound": "the clipping bound",
    "bits": "the bits of quantisation",
    "sigma": "the strength of the noise",
    "defences": "the defences and their settings",
    "dropout": "the masks that dropout drew",
}
OF_DEFENCE = ("mask", "bound", "bits", "sigma", "defences", DEFENCE)
DEFENDED = "that the client was defended, and how"
SIMULATED = "that it should simulate the local steps"
CHOSEN = "the weights that clients get, which it chooses (a dishonest server)"
AVERAGED = "that it should average over the masks of dropout"
SEEN = "of several local steps the weights before the first (w0) and after the last (wT) only"
BETWEEN = "what happened between w0 and wT: the weights and gradients of the single local steps"
SETTING = {
    "data": "Private data",
    "model": "Network",
    "weights": "Weights",
    "client": "Client",
    "defences": "Defences",
    "attack": "Attack",
    "trials": "Trials a cell",
    "precision": "Precision",
}
SKIPPED = frozenset({"name", "seed", "seeds", "baselines", "metrics", KNOWLEDGE, UNKNOWN_DEFENCES})
LONGEST = 220
MOST_VARIANTS = 3


def threat_of(cells: Sequence[Cell], words: str = "") -> Threat:
    """Return the threat model of these cells without baselines; what no cell states is not claimed."""
    attacked = [cell for cell in cells if not cell.baseline]
    known, hidden = list(ALWAYS_KNOWN), list(ALWAYS_HIDDEN)
    mixed: list[str] = []
    for fact, states in _facts(attacked).items():
        (mixed if len(states) > 1 else known if True in states else hidden).append(_counted(fact, states))
    words = " ".join(filter(None, (words, in_letters({_threat_model(cell) for cell in attacked}))))
    played = list(dict.fromkeys(manipulation_in(cell) for cell in attacked))
    server = HONEST if "" in played else DISHONEST
    if server is HONEST and len(played) > 1:
        server = f"{HONEST} In some settings: a dishonest server."
    return Threat(
        words=words,
        server=" ".join(filter(None, (server, *played))),
        setting=_setting(attacked),
        known=tuple(known),
        hidden=tuple(hidden),
        mixed=tuple(mixed),
    )


def _facts(cells: Sequence[Cell]) -> dict[str, set[bool]]:
    """Return each fact in words and whether it is known, over all cells that have it."""
    facts: dict[str, set[bool]] = {}
    for cell in cells:
        setting = cell.settings.get(KNOWLEDGE)
        knowledge = dict(setting) if isinstance(setting, Mapping) else {}
        if _trains(cell) is False:
            knowledge.pop("local", None)
        if not _drops(cell):
            knowledge.pop("dropout", None)
        stated = _of_steps(cell) | _of_defences(cell, knowledge)
        knowledge.pop(DEFENCE, None)
        for name, value in knowledge.items():
            stated[FACTS.get(name, name.replace("_", " "))] = value is not None and value is not False
        for fact, known in stated.items():
            facts.setdefault(fact, set()).add(known)
    active = [bool(manipulation_in(cell)) for cell in cells]
    if any(active):
        facts |= {fact: set(active) for fact in (CHOSEN, FACTS["public"])}
    insiders = [_begins_inside(cell) for cell in cells]
    if any(insiders):
        facts["a public example of the class of each private input"] = set(insiders)
    return facts


def _counted(fact: str, states: set[bool]) -> str:
    """Return a fact in words; the local training is known completely or not at all."""
    if fact != FACTS["local"]:
        return fact
    return f"{fact} ({'all of it or none' if len(states) > 1 else 'all of it' if True in states else 'none of it'})"


def _of_steps(cell: Cell) -> dict[str, bool]:
    """Return what is observed of a client with several local steps: the weights before and after."""
    return {SEEN: True, BETWEEN: False} if _steps(cell) > 1 else {}


def _of_defences(cell: Cell, knowledge: Mapping[str, object]) -> dict[str, bool]:
    """Return whether the attacker knows the defences of a cell; without defences, what else that setting makes it do."""
    client = cell.settings.get("client")
    inside = isinstance(client, Mapping) and any(client.get(name) is not None for name in ("on_model", "on_data"))
    known = any(knowledge.get(name) for name in OF_DEFENCE)
    nobody = {line: False} if (line := nobody_knows([cell])) else {}
    if cell.settings.get("defences") and not all_unknown(cell):
        # facts of single defences, if named, say what is known
        return nobody | ({DEFENDED: known} if not known or DEFENCE in knowledge else {})
    if inside:
        return nobody | {DEFENDED: known or knows_head(cell)}
    if DEFENCE not in knowledge:
        return nobody
    simulates = _steps(cell) > 1 and simulates_if_informed(cell)
    return nobody | ({SIMULATED: known} if simulates else {}) | ({AVERAGED: known} if _drops(cell) else {})


def _threat_model(cell: Cell) -> ThreatModel:
    """Return the threat model of the SoK that covers a cell's attacker."""
    knowledge = cell.settings.get(KNOWLEDGE)
    local = isinstance(knowledge, Mapping) and bool(knowledge.get("local"))
    client = cell.settings.get("client")
    statistics = isinstance(client, Mapping) and bool(client.get("sends_buffers"))
    active = bool(manipulation_in(cell))
    local, public = local and _trains(cell) is True, active or _begins_inside(cell)
    return threat_model_of(local=local, public=public, statistics=statistics, manipulates=active)


def _begins_inside(cell: Cell) -> bool:
    """Return whether the attack starts from a public example of the right class."""
    attack = cell.settings.get("attack")
    start = attack.get("start") if isinstance(attack, Mapping) else None
    return isinstance(start, Mapping) and start.get("name") == "insider"


def _trains(cell: Cell) -> bool | None:
    """Return whether the client trains locally, None if the cell does not say."""
    client = cell.settings.get("client")
    return None if not isinstance(client, Mapping) or "local" not in client else client["local"] is not None


def _steps(cell: Cell) -> int:
    """Return the client's number of local steps (`LocalTraining.steps`); 0 if it does not train."""
    client, data = cell.settings.get("client"), cell.settings.get("data")
    local = client.get("local") if isinstance(client, Mapping) else None
    if not isinstance(local, Mapping):
        return 0
    samples = data.get("samples") if isinstance(data, Mapping) else None
    epochs, size = local.get("epochs"), local.get("batch_size")
    batches = -(-samples // size) if isinstance(samples, int) and isinstance(size, int) and size > 0 else 1
    return batches * (epochs if isinstance(epochs, int) else 1)


def _drops(cell: Cell) -> bool:
    """Return whether the network has dropout."""
    model = cell.settings.get("model")
    return isinstance(model, Mapping) and bool(model.get("dropout"))


def _setting(cells: Sequence[Cell]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return what was attacked, a line per part of the scenario, with its variants."""
    lines: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell.settings.items():
            if name not in SKIPPED:
                words = _client(value) if name == "client" else describe(value, inside=False)
                lines.setdefault(name, {})[words] = None
    return tuple((SETTING.get(name, _heading(name)), _variants(list(texts))) for name, texts in lines.items())


def _variants(texts: list[str]) -> tuple[str, ...]:
    shown = tuple(_cut(text) for text in texts[:MOST_VARIANTS])
    more = len(texts) - len(shown)
    return (*shown, f"and {more} more") if more > 0 else shown


def _client(value: object) -> str:
    if not isinstance(value, Mapping) or "local" not in value:
        return describe(value, inside=False)
    rest = describe({name: _loss(item) if name == "loss" else item for name, item in value.items() if name != "local"})
    training = (
        "shares one gradient" if value["local"] is None else f"trains ({describe(value['local'])}), shares its weights"
    )
    return f"{training}; {rest}" if rest != "none" else training


def _loss(name: object) -> object:
    return "mse (labels are one-hot targets)" if name == "mse" else name


def _heading(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


def describe(value: object, *, inside: bool = True) -> str:
    """Return settings in words.

    >>> describe({"name": "cpl", "iterations": 25, "start": {"name": "normal"}}, inside=False)
    'cpl: iterations 25, start normal'
    >>> describe([]), describe([{"name": "clip", "bound": 1.0}, "noise"]), describe({"local": None})
    ('none', 'clip (bound 1), noise', 'local none')
    """
    if isinstance(value, Mapping):
        rest = ", ".join(f"{k.replace('_', ' ')} {describe(v)}" for k, v in value.items() if k != "name" and v != "")
        if "name" not in value:
            return rest or "none"
        return f"{value['name']}" + (f" ({rest})" if rest and inside else f": {rest}" if rest else "")
    if isinstance(value, list | tuple):
        return ", ".join(describe(item) for item in value) or "none"
    return axis_value_text(value) if value is None or isinstance(value, str | int | float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition(",")[0] + " …"
