"""Flower (Message API, extra `flower`): record what the server sees of each client, and apply defences in the clients.

Server: `strategy = record(FedAvg(), Recording(directory=Path("captures")))`, then `strategy.start(...)` as usual.
Client: `app = ClientApp(mods=[protecting(Clip(1.0), GaussianNoise(0.01))])`.

Recording changes no message, so the training result is bit-identical. Wrap the outermost strategy to capture what really arrived.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError, import_extra
from leakscope.core.tree import Tree, subtract, tensors
from leakscope.defences import Defence, RememberingDefence
from leakscope.defences.stack import begin, check_stack, protect
from leakscope.integrations.flower_arrays import record_of, tree_of
from leakscope.store.captures import Capture, Plain
from leakscope.store.recorder import Recorder, Recording, plain_config, reported_count

S = TypeVar("S")
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]

EXAMPLES = "num-examples"
PARTITION = "partition-id"
STATE = "leakscope.protecting"
TRAIN = "train"


# -- recording, at the server


def record(strategy: S, recording: Recording | Recorder) -> S:
    """Return a copy of any Flower strategy that trains identically and records what clients send.

    Clients that fail, or whose reply has no arrays like those they got, are not recorded. Pass a `Recorder` to read its counts
    afterwards.
    """
    for name in ("configure_train", "aggregate_train", "start"):
        if not callable(getattr(strategy, name, None)):
            raise InputError(
                f"record() needs a strategy of flwr.serverapp.strategy; {type(strategy).__name__} has no {name}()"
            )
    recorder = recording if isinstance(recording, Recorder) else Recorder(recording)
    recorded: Any = copy.copy(strategy)
    watch = _Watch(
        recorder, recorded.configure_train, recorded.aggregate_train, getattr(strategy, "weighted_by_key", EXAMPLES)
    )
    recorded.configure_train, recorded.aggregate_train = watch.configure_train, watch.aggregate_train
    return recorded  # type: ignore[no-any-return]


class _Watch:
    """Records the messages of a strategy and passes them on unchanged."""

    def __init__(
        self,
        recorder: Recorder,
        configure: Callable[..., Iterable[Any]],
        aggregate: Callable[..., tuple[object, object]],
        examples: str,
    ) -> None:
        self.recorder, self.configure, self.aggregate, self.examples = recorder, configure, aggregate, examples
        self.handed_out: dict[str, tuple[list[Tree], dict[str, Plain]]] = {}

    def configure_train(self, server_round: int, arrays: object, config: object, grid: object) -> Iterable[Any]:
        """Return the strategy's messages, after storing what each client is given."""
        messages = list(self.configure(server_round, arrays, config, grid))
        self.handed_out = {}
        if self.recorder.settings.wants(server_round):
            self.recorder.safely(lambda: self._note(messages))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[object, object]:
        """Return the strategy's aggregate, after recording the replies."""
        replies = list(replies)
        self.recorder.safely(lambda: self._record(server_round, replies))
        self.handed_out = {}
        return self.aggregate(server_round, replies)

    def _note(self, messages: list[Any]) -> None:
        seen: dict[int, list[Tree]] = {}  # most strategies send one record to all clients: convert it once
        for message in messages:
            content = message.content
            if id(content) not in seen:
                seen[id(content)] = [tree_of(arrays) for arrays in content.array_records.values()]
            self.handed_out[str(message.metadata.dst_node_id)] = (
                seen[id(content)],
                plain_config(*content.config_records.values()),
            )

    def _record(self, server_round: int, replies: list[Any]) -> None:
        usable = {str(r.metadata.src_node_id): r.content for r in replies if r.has_content()}
        known = [client for client in usable if client in self.handed_out]
        for client in self.recorder.settings.choose(server_round, known):
            self.recorder.safely(partial(self._record_one, server_round, client, usable[client]))

    def _record_one(self, server_round: int, client: str, content: Any) -> None:
        given, config = self.handed_out[client]
        answer = next(_answers(given, content.array_records.values()), None)
        if answer is None:
            self.recorder.leave_out(f"client {client} sent no arrays like those it was given")
            return
        reported = content.metric_records.values()
        self.recorder.record(
            Capture(
                round=server_round,
                client=client,
                before=answer[0],
                sent=answer[1],
                partition=reported_count(PARTITION, *reported),
                examples=reported_count(self.examples, *reported),
                config=config,
            )
        )


def _answers(given: list[Tree], replied: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Tree, Tree]]:
    """Yield (given, returned) for each reply record with the names and shapes of a given one."""
    for arrays in replied:
        sent = tree_of(arrays)
        shapes = {name: value.shape for name, value in sent.items()}
        for before in given:
            if {name: value.shape for name, value in before.items()} == shapes:
                yield before, sent


# -- defending, at the client


def answers_of(given: list[Tree], reply: Any, who: str) -> dict[str, tuple[Tree, Tree]]:
    """Return (given, returned) of every record of a reply; raise if one is unlike what the client got."""
    records = reply.content.array_records
    pairs = {name: next(_answers(given, [arrays]), None) for name, arrays in records.items()}
    matched = {name: pair for name, pair in pairs.items() if pair is not None}
    if not matched or len(matched) < len(pairs):
        raise InputError(f"{who}: the reply has arrays unlike those that the client received; nothing was sent")
    return matched


def protecting(*defences: Defence, seed: int | None = None) -> Mod:
    """Return a Flower client mod that applies defences, in order, to the change of the weights before it is sent.

    The change is `before - after` over all floating arrays, so a clip bounds it as a whole. A reply that cannot be protected
    raises. Noise comes from the system's secure randomness unless a `seed` is given, for experiments only: whoever knows it can
    subtract the noise.
    """
    if not defences:
        raise InputError("protecting() needs at least one defence")
    check_stack(defences)
    if next(tensors(defences), None) is not None:
        raise InputError(
            "protecting() protects one client: strengths must be plain numbers, not tensors with one per trial"
        )
    flower = import_extra("flwr.app", "flower", __name__)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not str(message.metadata.message_type).startswith(TRAIN):
            return call_next(message, context)
        given = [tree_of(arrays) for arrays in message.content.array_records.values()]
        reply = call_next(message, context)
        if not reply.has_content():
            return reply
        for number, (name, pair) in enumerate(answers_of(given, reply, "protecting()").items()):
            protected = _protected(flower, defences, pair[0], pair[1], context, seed, number)
            reply.content[name] = record_of(flower, protected)
        return reply

    return mod


def _protected(
    flower: Any, defences: tuple[Defence, ...], before: Tree, after: Tree, context: Any, seed: int | None, record: int
) -> Tree:
    """Return the weights to send: the received weights minus the protected change."""
    # by the client's types: averaged integers (batch norm's counter) come from the server as floats
    ours = {name: value for name, value in after.items() if value.is_floating_point()}
    before = {name: before[name].to(value.dtype) for name, value in ours.items()}
    change = subtract(before, ours)
    where = f"{STATE}.{record}"
    memory = [f"{where}.{number}" for number in range(len(defences))]
    state = tuple(
        tree_of(context.state[name]) if name in context.state else fresh
        for name, fresh in zip(memory, begin(defences, change), strict=True)
    )
    calls = int(context.state[where]["calls"]) if where in context.state else 0
    change, state = protect(defences, change, state, _key(context, seed, record, calls))
    context.state[where] = flower.ConfigRecord({"calls": calls + 1})
    for name, defence, kept in zip(memory, defences, state, strict=True):
        if isinstance(defence, RememberingDefence):
            context.state[name] = record_of(flower, kept)
    return {**after, **subtract(before, change)}


def _key(context: Any, seed: int | None, record: int, calls: int) -> Tensor:
    if seed is None:
        return random.key(secrets.randbits(63))
    who = context.node_config.get(PARTITION, context.node_id)
    key = random.fold(random.fold(random.key(seed), "flower client"), int(who) % 2**31)
    return random.fold(random.fold(key, record), calls)
