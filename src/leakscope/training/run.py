"""Running a training: rounds, accuracy, checkpoints, and a state on disk after every round.

    DIR/training.yaml                        the file, as it was given
    DIR/state.safetensors                    what the server needs for the next round, written atomically
    DIR/private/round-00005.safetensors      private client state, not to be shared; private heads only with `keep_private`
    DIR/checkpoints/round-00005.safetensors  the global model after round 5
    DIR/curve.csv                            the learning curve

A killed training resumes from its state and gives identical bits; it can also be extended by more rounds. Private heads need
`keep_private` for both. The state holds a hash of all that determines the result; the state of another training is rejected.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.plugins import plugin_facts
from leakscope.core.registry import lookup
from leakscope.federated import (
    Played,
    State,
    begin,
    is_finite,
    measure_utility,
    pack,
    parameters_of,
    play_round,
    run_rounds,
    unpack,
)
from leakscope.federated.traced import forget
from leakscope.models.checkpoint import Checkpoint, file_name, pack_checkpoint
from leakscope.store.disk import PART, clear_errors, locked, make_folder, replace_changed
from leakscope.store.untrusted import foreign_content
from leakscope.sweep.objects import fingerprint
from leakscope.training.file import Training
from leakscope.training.objects import FORMS, TrainingObjects, choose_form, make_objects, naming_field
from leakscope.training.result import (
    CURVE,
    FILE,
    STATE,
    Point,
    Result,
    about_of,
    can_go_on,
    checkpoints_of,
    curve_of,
    facts_of,
    forget_older,
    read_private,
    refuse_kept,
    table_of,
    write_private,
)
from leakscope.training.result import FOLDER as PRIVATE

LOCK = "run.lock"
RESULTS = 1  # increased when a change of leakscope changes training results
SAVE_EVERY = 2.0  # seconds between saved states; shorter rounds are not saved one by one


def run_training(
    training: Training,
    directory: Path,
    *,
    device: str = "cpu",
    keep_private: bool = False,
    facts: Mapping[str, str] | None = None,
    on_round: Callable[[Point], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    inside: Callable[[int, int, int], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Return the training after its last round, started or resumed in `directory`.

    `on_round` gets every point of the curve, `say` messages, `inside` (round, clients done, clients of the round); `stop` is
    checked between rounds. `keep_private` writes private heads to DIR/private, so that the training can be resumed.
    """
    world, first = _begun(training, device)
    _refuse_other_files(directory)
    with clear_errors(directory, "no training was begun"):
        directory.mkdir(parents=True, exist_ok=True)
        make_folder(directory / Path(file_name(0)).parent)
    with locked(directory / LOCK), clear_errors(directory, "what was saved before is whole"):
        writes_private = keep_private or not first.private
        run = _Run(
            training,
            world,
            directory,
            device,
            {**(facts or {}), **plugin_facts([training.plain])},
            writes_private=writes_private,
        )
        try:
            return run.play(first, on_round, say, inside, stop)
        finally:
            forget()


def check_training(training: Training, device: str = "cpu") -> None:
    """Raise the errors a training would raise when it starts; nothing is trained or written."""
    _begun(training, device)


def _begun(training: Training, device: str) -> tuple[TrainingObjects, State]:
    world = make_objects(training, device)
    with naming_field(training, "selection"):
        return world, begin(world.federation, world.trained, world.holdings.clients, weights=world.weights)


class _Run:
    """One training in its directory; `writes_private` is whether private client state is written there."""

    def __init__(
        self,
        training: Training,
        world: TrainingObjects,
        directory: Path,
        device: str,
        facts: dict[str, str],
        *,
        writes_private: bool,
    ) -> None:
        self.training, self.world, self.directory, self.facts = training, world, directory, facts
        self.writes_private = writes_private
        self.stamp = _stamp(training, device)
        self.form: str | None = training.precision.form
        self.curve: list[Point] = []
        self.saved = time.monotonic()

    def play(
        self,
        first: State,
        on_round: Callable[[Point], None],
        say: Callable[[str], None],
        inside: Callable[[int, int, int], None],
        stop: Callable[[], bool],
    ) -> Result:
        """Return the result after the missing rounds."""
        state = self._resumed(first)
        if not self.writes_private and self._is_left(state):
            say(
                "private heads are not written, so a training that is cut cannot be gone on with; "
                f"--keep-private keeps them in {self.directory / PRIVATE}/"
            )
        if state.rounds:
            say(f"going on after round {state.rounds}")
            self._complete(state, say)
        self.form = self.form or choose_form(self.world, state, say)
        self._write(FILE, self.training.file.text.encode())
        if not self.curve:
            self.curve.append(self._measured(state, Point(0, 0, 0, 1.0, None, None, None)))
            self._save(state)  # fixes the form for resumed runs
            on_round(self.curve[-1])
        world, form = self.world, FORMS[self.form]

        def play(state: State) -> tuple[State, Played]:
            progress = partial(inside, state.rounds + 1)
            return play_round(world.federation, world.trained, world.holdings, state, form=form, progress=progress)

        def after(state: State, played: Played) -> None:
            point = Point(played.round, len(played.answered), played.examples, played.decay, None, None, None)
            measured = self._due(played.round) or not is_finite(state)
            self.curve.append(self._measured(state, point) if measured else point)
            self._write_round(state)
            on_round(self.curve[-1])

        state = run_rounds(
            state, play, self.training.rounds, after=after, stop=lambda state: not is_finite(state) or stop()
        )
        self._save(state)
        return self.result(is_finite(state), stopped=self._is_left(state))

    def result(self, finite: bool, *, stopped: bool = False) -> Result:
        """Return the contents of the directory."""
        return Result(
            training=self.training,
            curve=tuple(self.curve),
            sizes=tuple(self.world.holdings.counts.tolist()),
            checkpoints=checkpoints_of(self.directory),
            facts=self.facts,
            diverged=not finite,
            stopped=stopped,
            resumable=can_go_on(self.directory, self.training.federation, self.curve[-1].round),
        )

    def _is_left(self, state: State) -> bool:
        return state.rounds < self.training.rounds and is_finite(state)

    def _due(self, number: int) -> bool:
        training = self.training
        return number == training.rounds or number in training.checkpoints or number % training.evaluate == 0

    def _measured(self, state: State, point: Point) -> Point:
        if not is_finite(state):  # argmax of NaN logits would sometimes count as correct
            return replace(point, loss=math.nan)
        weights = parameters_of(self.world.used, state)
        scaling, loss = self.world.federation.client.scaling, str(self.world.federation.client.loss)
        utility = measure_utility(self.world.used, weights, state.buffers, self.world.data, scaling=scaling, loss=loss)
        return replace(point, correct=utility.correct, n=utility.n, loss=utility.loss)

    def _write_round(self, state: State) -> None:
        """Write the checkpoint of a listed round, and the state if the last one is old."""
        if self._wanted(state) and is_finite(state):
            weights, point = parameters_of(self.world.used, state), self.curve[-1]
            about = {"round": state.rounds, "training": self.training.name, "correct": point.correct, "n": point.n}
            about["scaling"] = self.training.data.scaling
            self._write(file_name(state.rounds), pack_checkpoint(self.world.used, weights, state.buffers, about))
            self._save(state)
        elif time.monotonic() - self.saved >= SAVE_EVERY:
            self._save(state)

    def _wanted(self, state: State) -> bool:
        return state.rounds in self.training.checkpoints or state.rounds == self.training.rounds

    def _complete(self, state: State, say: Callable[[str], None]) -> None:
        """Write the current round's checkpoint if wanted and missing, and report earlier ones that are missing."""
        written = checkpoints_of(self.directory)
        if self._wanted(state) and state.rounds not in written:
            self._write_round(state)
        past = [each for each in self.training.checkpoints if each < state.rounds and each not in written]
        if past:
            numbers = ", ".join(map(str, past))
            say(f"checkpoints of rounds {numbers} are past and were not written: train into another --out to have them")

    def _save(self, state: State) -> None:
        about = {
            "stamp": self.stamp,
            "form": self.form,
            "curve": [asdict(point) for point in self.curve],
            "facts": self.facts,
            "sizes": self.world.holdings.counts.tolist(),
        }
        self._write(CURVE, table_of(self.curve).encode())
        if self.writes_private:
            write_private(self.directory, state)
        self._write(STATE, pack(state, about))
        forget_older(self.directory, state)
        self.saved = time.monotonic()

    def _resumed(self, first: State) -> State:
        """Return the current state; without private client state if no round is left."""
        path = self.directory / STATE
        with foreign_content(self.directory):
            state = self._read_server(path, first) if path.exists() else first
        if not self._is_left(state):
            return state
        if not self.writes_private:
            refuse_kept(self.directory)
        if not state.rounds:  # no round yet: private state is as drawn
            return replace(state, private=first.private, memory=first.memory)
        private = read_private(self.directory, state.rounds)
        if private is None and first.private:
            raise InputError(
                f"{self.directory} is after round {state.rounds} of {self.training.rounds} and its private heads were not kept, "
                "so it cannot be continued: choose a new --out, with --keep-private to be able to continue later"
            )
        return unpack(path.read_bytes(), first, private)[0]

    def _read_server(self, path: Path, first: State) -> State:
        """Return the server's part of the state on disk, and restore its metadata."""
        about = about_of(path)
        if about.get("stamp") != self.stamp:
            raise InputError(
                f"{self.directory} holds another training (other settings, data, device or version): choose another --out"
            )
        state, about = unpack(path.read_bytes(), replace(first, private={}, memory=()))
        self.form = str(about["form"])  # not the fastest now: only the same form gives the same bits
        lookup(FORMS, self.form, "form")
        self.curve = curve_of(about["curve"])
        if len(self.curve) != state.rounds + 1:
            raise ValueError("the learning curve does not end where the state stands")
        self.facts = {**facts_of(self.directory), **self.facts}
        if state.rounds > self.training.rounds:
            raise InputError(
                f"{self.directory} is already {state.rounds} rounds far, {self.training.rounds} are asked for: "
                "choose another --out, or take a checkpoint of it"
            )
        return state

    def _write(self, name: str, data: bytes) -> None:
        replace_changed(self.directory / name, data)


def _refuse_other_files(directory: Path) -> None:
    """Raise if a non-empty directory holds no training."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file; a training needs a directory")
    if not directory.is_dir() or (directory / FILE).is_file():
        return
    ours = {LOCK, PRIVATE, Path(file_name(0)).parent.name}
    other = sorted(path.name for path in directory.iterdir() if path.name not in ours and path.suffix != PART)
    if other:
        raise InputError(f"{directory} is not empty (it holds {other[0]}): choose a new directory for the training")


def _stamp(training: Training, device: str) -> str:
    """Return the hash of all that determines the numbers of a training, without its title and number of rounds."""
    decisive, data = training.decisive, training.data
    if isinstance(training.weights, Checkpoint):
        decisive["weights"] = Checkpoint(training.weights.path, training.weights.round).digest()
    digests = [fingerprint(data.name, part, data.length, data.words, data.shortest) for part in ("train", "test")]
    text = json.dumps([RESULTS, decisive, digests, device], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
