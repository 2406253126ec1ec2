"""The one folder of a training that must not be shared: what its clients keep to themselves, for going on later.

    DIR/private/round-00005.safetensors     private heads, codes, what defences remember; mode 0600 in a folder of mode 0700
    DIR/private/.gitignore                  keeps the folder out of a repository

Where clients have private heads the folder is written only if it is asked for (`keep_private`): a head that stays with its client is
in no file. What defences remember is written where there are no heads, because a training could not go on without it.

Only the round of the state is kept. It is written before the state and the one before it is deleted after, so that a training
killed at any moment finds the file of its state's round.
"""

from __future__ import annotations

import os
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.federated import Federation, State, pack_private
from leakscope.store.disk import replacing

FOLDER = "private"


def write_private(directory: Path, state: State) -> None:
    """Write what the clients keep to themselves, readable by the owner alone; nothing is written where they keep nothing."""
    data = pack_private(state)
    if data is None:
        return
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for path, content in ((folder / ".gitignore", b"*\n"), (_file(directory, state.rounds), data)):
        if not path.exists() or path.read_bytes() != content:
            with replacing(path) as file:
                os.fchmod(file.fileno(), 0o600)  # before the first byte is in it
                file.write(content)


def forget_older(directory: Path, state: State) -> None:
    """Delete the private files of other rounds than the state's, which is on disk by now."""
    for path in sorted((directory / FOLDER).glob("round-*")):
        if path != _file(directory, state.rounds):
            path.unlink()


def refuse_kept(directory: Path) -> None:
    """Raise if the folder holds heads, for a training that was not asked to keep them."""
    if sorted((directory / FOLDER).glob("round-*")):
        raise InputError(
            f"{directory / FOLDER} holds private heads: go on with --keep-private, which keeps them there, or choose a new --out"
        )


def can_go_on(directory: Path, federation: Federation, rounds: int) -> bool:
    """Return whether a training can go on after a round: it has no private heads, or they are kept, or not trained yet."""
    return federation.client.on_model is None or not rounds or _file(directory, rounds).exists()


def read_private(directory: Path, rounds: int) -> bytes | None:
    """Return the private file of a round; None where there is none, InputError where there are those of other rounds."""
    path = _file(directory, rounds)
    if path.exists():
        return path.read_bytes()
    if sorted(path.parent.glob("round-*")):
        raise InputError(
            f"{path.parent} does not hold round {rounds}, where the state stands; train in a new directory"
        )
    return None


def _file(directory: Path, rounds: int) -> Path:
    return directory / FOLDER / f"round-{rounds:05}.safetensors"
