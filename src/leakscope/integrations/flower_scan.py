"""Flower (extra `flower`): a client mod that scans the model that the server sent and refuses a round with a suspected trap.

Client: `app = ClientApp(mods=[scanning(build)])`, where `build(message, context)` returns the `Target`: network and own sample.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from leakscope.auditing.target import Target
from leakscope.core.errors import first_line, import_extra
from leakscope.core.tree import Tree
from leakscope.integrations.flower import TRAIN, Mod
from leakscope.integrations.flower_arrays import record_of, tree_of
from leakscope.integrations.flower_guard import PRECONDITION
from leakscope.scanning.rounds import check_same
from leakscope.scanning.scan import Scan, scan
from leakscope.store.recorder import plain_config

STATE = "leakscope.scanning"
REFUSED = "the client's scan refused the model of this round"


class ScanWarning(UserWarning):
    """A round was trained although the scan of its model failed."""


def scanning(build: Callable[[Any, Any], Target], *, fail_open: bool = False, log: str | Path | None = None) -> Mod:
    """Return a Flower client mod that scans every received model with `leakscope.scan` before it is trained on.

    `build(message, context)` returns the client's network and a sample of its own data; the mod loads the weights that the server sent
    and compares them with those of the round before, kept in the client's state. A suspected trap becomes an error message,
    which strategies leave out; it does not say why. A scan that fails or can run no test refuses the round too, unless `fail_open`.
    `log` is a file that gets one line of JSON a model. Put it first, so that nothing runs before it.
    """
    flower = import_extra("flwr.app", "flower", __name__)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not str(message.metadata.message_type).startswith(TRAIN):
            return call_next(message, context)
        number = plain_config(*message.content.config_records.values()).get("server-round")
        refused = False
        for name, arrays in message.content.array_records.items():
            where = f"{STATE}.{name}"
            before = context.state.get(where)
            result, problem = _scanned(build, message, context, arrays, before)
            problem = "no test could run" if result is not None and not result.ran else problem
            if log is not None:
                line = {"round": number, "problem": problem, **({} if result is None else result.to_dict())}
                with Path(log).open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(line)}\n")
            if problem and fail_open:
                warnings.warn(f"the round is trained although the scan failed: {problem}", ScanWarning, stacklevel=2)
            refused |= not fail_open if result is None or not result.ran else result.suspected
            if result is not None and result.passed:
                context.state[where] = record_of(flower, tree_of(arrays))
        if refused:
            return flower.Message(flower.Error(PRECONDITION, REFUSED), reply_to=message)
        return call_next(message, context)

    return mod


def _scanned(
    build: Callable[[Any, Any], Target], message: Any, context: Any, arrays: Any, previous: Any
) -> tuple[Scan | None, str]:
    """Return the scan of one record of arrays, or None and why it failed."""
    try:
        target = build(message, context)
        received = _with_frozen(target.model, tree_of(arrays))
        check_same(target.model.state_dict(), received, "what the server sent")
        target.model.load_state_dict(received)
        last = None if previous is None else _with_frozen(target.model, tree_of(previous))
        return scan(target, previous=last), ""
    except Exception as error:  # a user's network or data may raise anything
        return None, first_line(error)


def _with_frozen(model: nn.Module, sent: Tree) -> Tree:
    """Return what was sent, with the model's own frozen parameters where only adapters travel."""
    own = {name: value.detach() for name, value in model.named_parameters() if not value.requires_grad}
    return own | sent
