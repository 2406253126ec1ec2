"""NVFlare (extra `nvflare`): a filter at the server that records what it receives from each client.

`record(recipe, Recording(directory=Path("captures")))`, then `recipe.execute(...)` as usual. The filter changes no message.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from leakscope.core.errors import InputError, import_extra
from leakscope.core.tree import Tree
from leakscope.store.captures import CLIENT, Capture, Plain
from leakscope.store.recorder import GIB, Recorder, Recording, plain_config, reported_count

try:
    from nvflare.apis.filter import Filter
except ImportError:  # without the extra this module imports, and its functions name the extra
    Filter = object

J = TypeVar("J")

EXAMPLES, PARTITION = "num-examples", "partition-id"  # in the meta of a client's FLModel
TRAIN = "train"


def record(job: J, recording: Recording, *, task: str = TRAIN) -> J:
    """Return the recipe or FedJob, whose server now also records the results of `task`.

    Add filters that decompress or decrypt updates before: the recorder sees what earlier filters return.
    """
    api = import_extra("nvflare.job_config.api", "nvflare", __name__)
    fed_job: Any = (
        job if isinstance(job, api.FedJob) else getattr(job, "_job", None)
    )  # a recipe has no public name for it
    if not isinstance(fed_job, api.FedJob):
        raise InputError(f"record() needs a recipe or a FedJob of nvflare, got {type(job).__name__}")
    recorder = UpdateRecorder(
        str(recording.directory.absolute()), recording.every, recording.clients, recording.most_bytes, recording.seed
    )
    fed_job.to_server(recorder, filter_type=api.FilterType.TASK_RESULT, tasks=[task])
    fed_job.set_app_packages(
        sorted({*fed_job.job.app_packages, "leakscope"})
    )  # else the job carries copies of our files
    return job


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """What one client received: the task's id, the round, weights and plain values."""

    id: str
    round: int
    weights: Tree
    config: dict[str, Plain]


class UpdateRecorder(Filter):  # type: ignore[misc]
    """A filter of task results at the server that records them; arguments as in `Recording`, plain values for the job's JSON.

    Rounds have NVFlare's numbers, which start at 0. `clients` are drawn from all clients of the job.
    """

    def __init__(
        self, directory: str, every: int = 1, clients: int | None = None, most_bytes: int = GIB, seed: int = 0
    ) -> None:
        self._keys = import_extra("nvflare.apis.fl_constant", "nvflare", __name__)
        self._events = import_extra("nvflare.apis.event_type", "nvflare", __name__).EventType
        self._read = import_extra("nvflare.apis.dxo", "nvflare", __name__).from_shareable
        super().__init__()
        self.directory, self.every, self.clients = directory, every, clients  # NVFlare writes these to the job's JSON
        self.most_bytes, self.seed = most_bytes, seed
        settings = Recording(directory=Path(directory), every=every, clients=clients, most_bytes=most_bytes, seed=seed)
        self._recorder = Recorder(settings)
        self._tasks: dict[str, _Task] = {}
        self._latest: Tree = {}
        self._lock = threading.Lock()  # clients ask for tasks in threads

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Store the weights that a client is about to receive; log the counts at the end of the run."""
        if event_type == self._events.AFTER_TASK_DATA_FILTER:
            with self._lock:
                self._recorder.safely(lambda: self._note(fl_ctx))
        elif event_type == self._events.END_RUN:
            self.log_info(
                fl_ctx, f"updates recorded: {self._recorder.written}; left out: {dict(self._recorder.left_out)}"
            )

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Return a client's result unchanged, after recording it."""
        with self._lock:
            self._recorder.safely(lambda: self._record(shareable, fl_ctx))
        return shareable

    def _note(self, fl_ctx: Any) -> None:
        data, client = fl_ctx.get_prop(self._keys.FLContextKey.TASK_DATA), _sender(fl_ctx)
        number = data.get_header(self._keys.FLMetaKey.CURRENT_ROUND)
        settings = self._recorder.settings
        self._tasks.pop(client, None)
        if number is None or not settings.wants(number + 1):
            return
        if client in settings.choose(number, [each.name for each in fl_ctx.get_engine().get_clients()]):
            model = self._read(data)
            weights = tree_of(model.data)
            if not _same(weights, self._latest):  # most clients of a round receive the same
                self._latest = weights
            task = fl_ctx.get_prop(self._keys.FLContextKey.TASK_ID)
            self._tasks[client] = _Task(str(task), int(number), self._latest, plain_config(model.meta))

    def _record(self, shareable: Any, fl_ctx: Any) -> None:
        client = _sender(fl_ctx)
        task = self._tasks.pop(client, None)
        if task is None or task.id != str(fl_ctx.get_prop(self._keys.FLContextKey.TASK_ID)):
            return
        if shareable.get_return_code() != self._keys.ReturnCode.OK:
            return
        model = self._read(shareable)
        sent = tree_of(model.data)
        if model.data_kind == "WEIGHT_DIFF":
            sent = {name: task.weights[name] + change for name, change in sent.items()}
        elif model.data_kind != "WEIGHTS":
            self._recorder.leave_out(f"a result of kind {model.data_kind} holds no weights")
            return
        self._recorder.record(
            Capture(
                round=task.round,
                client=file_name(client),
                before=task.weights,
                sent=sent,
                partition=reported_count(PARTITION, model.meta),
                examples=reported_count(EXAMPLES, model.meta),
                config=task.config,
            )
        )


def _sender(fl_ctx: Any) -> str:
    return str(fl_ctx.get_peer_context().get_identity_name())


def _same(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and torch.equal(value, other[name]) for name, value in one.items()
    )


def tree_of(arrays: Mapping[str, Any]) -> Tree:
    """Return the arrays or tensors of an NVFlare model as named tensors with their own memory."""
    return {
        str(name): value.detach().cpu().clone() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        for name, value in arrays.items()
    }


def file_name(client: str) -> str:
    """Return a client's name as captures allow it; a changed name ends in a digest, so that two stay two."""
    if CLIENT.fullmatch(client):
        return client
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', client)[:48]}-{hashlib.sha256(client.encode()).hexdigest()[:8]}"
