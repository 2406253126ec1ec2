"""Flower (extra `flower`): a client mod that attacks the client's own update and stops what it can read back.

Client: `app = ClientApp(mods=[guarding(build, GuardSettings(seconds=5))])`, where `build(message, context)` returns the `Target`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from leakscope.auditing.target import Target
from leakscope.core.errors import InputError, import_extra
from leakscope.core.tree import Tree
from leakscope.guarding.guard import guard, warm_up
from leakscope.guarding.history import GuardHistory
from leakscope.guarding.settings import Decision, GuardSettings
from leakscope.integrations.flower import TRAIN, Mod, answers_of
from leakscope.integrations.flower_arrays import record_of, tree_of
from leakscope.store.recorder import plain_config

PRECONDITION = 6  # flwr's ErrorCode.MOD_FAILED_PRECONDITION
STATE = "leakscope.guarding"
REFUSED = "the client's guard refused to send the update"


def guarding(
    build: Callable[[Any, Any], Target], settings: GuardSettings | None = None, *, seed: int | None = None
) -> Mod:
    """Return a Flower client mod that checks every trained reply with `leakscope.guard` before it is sent.

    `build(message, context)` returns the client's network, its whole batch and its local training (`client`); the mod loads the
    weights that the server sent. A refused reply becomes an error message, which strategies leave out; it does not say why. The log
    also holds the round and the seconds of the training. With `GuardSettings.share` the history is kept in the
    client's state. Put it before other mods of the client, so that it sees what they send.
    """
    flower = import_extra("flwr.app", "flower", __name__)
    settings = GuardSettings() if settings is None else settings
    warm_up()

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not str(message.metadata.message_type).startswith(TRAIN):
            return call_next(message, context)
        given = [tree_of(arrays) for arrays in message.content.array_records.values()]
        began = time.monotonic()
        reply = call_next(message, context)
        if not reply.has_content():
            return reply
        config = plain_config(*message.content.config_records.values())
        training = time.monotonic() - began
        about = {"round": config.get("server-round"), "training_seconds": training}
        for name, (before, sent) in answers_of(given, reply, "guarding()").items():
            where, start = f"{STATE}.{name}", time.monotonic()
            history = None if settings.share is None else _history(context, where).trained(training)
            target = _loaded(build(message, context), before)
            result = guard(target, sent, settings=settings, history=history, seed=seed, about=about)
            if history is not None and result.history is not None:  # the time to build the target counts too
                after = replace(result.history, guard=history.guard + time.monotonic() - start)
                context.state[where] = flower.ConfigRecord(asdict(after))
            if result.sent is None:
                return flower.Message(flower.Error(PRECONDITION, REFUSED), reply_to=message)
            if result.decision is Decision.DEFEND:
                reply.content[name] = record_of(flower, result.sent)
        return reply

    return mod


def _history(context: Any, where: str) -> GuardHistory:
    """Return what the guard remembers of this client, from the client's own state."""
    return GuardHistory(**context.state[where]) if where in context.state else GuardHistory()


def _loaded(target: Target, weights: Tree) -> Target:
    """Return the target with the weights that the server sent."""
    if target.client is None:
        raise InputError("guarding(): Target.client must be the local training; Flower's clients send weights")
    target.model.load_state_dict(weights)
    return target
