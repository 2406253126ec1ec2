"""The results of a training: learning curve and checkpoints, and how to read them from its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.federated import Federation, State, pack_private
from leakscope.metrics.interval import Estimate, wilson
from leakscope.models.checkpoint import file_name
from leakscope.store.disk import check_plain, make_folder, replace_changed
from leakscope.training.file import Training

MOST = 2**53
STATE, FILE, CURVE = "state.safetensors", "training.yaml", "curve.csv"


@dataclass(frozen=True, slots=True)
class Point:
    """One round of the learning curve: the clients that answered, and the global model's quality after it (None: not measured)."""

    round: int
    answered: int
    examples: int
    decay: float
    correct: int | None
    n: int | None
    loss: float | None

    @property
    def accuracy(self) -> Estimate | None:
        """Return the accuracy with Wilson's 95 % interval."""
        if self.correct is None or not self.n:
            return None
        share = self.correct / self.n
        return Estimate(share, *wilson(share, self.n), self.n, self.n)


@dataclass(frozen=True, slots=True)
class Result:
    """A training so far: learning curve from round 0 on, checkpoints, facts; `diverged` if weights became infinite or NaN."""

    training: Training
    curve: tuple[Point, ...]
    sizes: tuple[int, ...]
    checkpoints: Mapping[int, str]
    facts: Mapping[str, str]
    diverged: bool = False
    stopped: bool = False
    resumable: bool = True  # whether another round can be run; False if private heads were not kept

    @property
    def rounds(self) -> int:
        """Return the number of completed rounds."""
        return self.curve[-1].round if self.curve else 0


def about_of(path: Path) -> dict[str, object]:
    """Return the metadata of a state file."""
    from safetensors import SafetensorError, safe_open

    check_plain(path)  # opening a FIFO waits for ever
    try:
        with safe_open(path, framework="pt") as file:
            return dict(json.loads((file.metadata() or {})["leakscope"]))
    except (SafetensorError, KeyError, ValueError, TypeError, OSError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path} is not a readable state ({reason}); delete it to train from the beginning") from None


def curve_of(points: object) -> list[Point]:
    """Return the stored learning curve, from round 0 on; raises ValueError or TypeError if it is none."""
    curve = [Point(**point) for point in points]  # type: ignore[attr-defined]
    for number, point in enumerate(curve):
        counts = [point.answered, point.examples, *(each for each in (point.correct, point.n) if each is not None)]
        numbers = [point.decay, *([] if point.loss is None else [point.loss])]
        whole = all(type(each) is int and 0 <= each <= MOST for each in counts)
        if not whole or type(point.round) is not int or point.round != number or (point.correct or 0) > (point.n or 0):
            raise ValueError(f"the learning curve holds impossible counts at place {number}")
        if not all(type(each) in (int, float) for each in numbers):
            raise ValueError(f"the learning curve holds no numbers at place {number}")
    return curve


def facts_of(directory: Path) -> dict[str, str]:
    """Return the facts stored with the training in a directory; {} if there is none."""
    path = directory / STATE
    facts = about_of(path).get("facts") if path.is_file() else {}
    return {str(name): str(value) for name, value in facts.items()} if isinstance(facts, dict) else {}


def checkpoints_of(directory: Path) -> dict[int, str]:
    """Return round -> checkpoint file."""
    files = sorted((directory / Path(file_name(0)).parent).glob("round-*.safetensors"))
    numbered = ((path.stem.rpartition("-")[2], path) for path in files)
    return {int(number): str(path) for number, path in numbered if number.isdecimal()}


def table_of(curve: Sequence[Point]) -> str:
    """Return the learning curve as CSV."""
    rows = ["round,answered,examples,rate_factor,correct,n,accuracy,low,high,loss"]
    for p in curve:
        a = p.accuracy
        shown = (a.value, a.low, a.high) if a else ("", "", "")
        parts = (p.round, p.answered, p.examples, p.decay, p.correct, p.n, *shown, p.loss)
        rows.append(",".join("" if part is None else str(part) for part in parts))
    return "\n".join(rows) + "\n"


FOLDER = "private"


def write_private(directory: Path, state: State) -> None:
    """Write the clients' private state, readable only by the owner; nothing if there is none."""
    data = pack_private(state)
    if data is None:
        return
    folder = make_folder(directory / FOLDER)
    folder.chmod(0o700)
    for path, content in ((folder / ".gitignore", b"*\n"), (_file(directory, state.rounds), data)):
        replace_changed(path, content, mode=0o600)


def forget_older(directory: Path, state: State) -> None:
    """Delete the private files of all rounds but the state's, which has been written."""
    folder = directory / FOLDER
    for path in [] if folder.is_symlink() else sorted(folder.glob("round-*")):
        if path != _file(directory, state.rounds):
            path.unlink()


def refuse_kept(directory: Path) -> None:
    """Raise if the folder holds private heads but the training does not keep them."""
    if sorted((directory / FOLDER).glob("round-*")):
        raise InputError(
            f"{directory / FOLDER} contains private heads: continue with --keep-private, which keeps them there, or choose a new --out"
        )


def can_go_on(directory: Path, federation: Federation, rounds: int) -> bool:
    """Return whether a training can continue after a round: it has no private heads, or they are kept, or not trained yet."""
    return federation.client.on_model is None or not rounds or _file(directory, rounds).exists()


def read_private(directory: Path, rounds: int) -> bytes | None:
    """Return the private file of a round, None if there is none; raises if only those of other rounds exist."""
    path = _file(directory, rounds)
    if path.exists():
        make_folder(path.parent)  # no link
        check_plain(path)
        return path.read_bytes()
    if sorted(path.parent.glob("round-*")):
        raise InputError(
            f"{path.parent} does not hold round {rounds}, where the state stands; train in a new directory"
        )
    return None


def _file(directory: Path, rounds: int) -> Path:
    return directory / FOLDER / f"round-{rounds:05}.safetensors"
