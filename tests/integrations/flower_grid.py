"""A Flower grid in one process: Flower's own messages, contexts, client app and strategy; only the wire is ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def make_grid(client_app: Any, nodes: int, run_config: dict[str, Any] | None = None) -> Any:
    """Return a `flwr.serverapp.Grid` that runs the client app here, once a message; an exception is an error reply."""
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    class Here(Grid):
        def __init__(self) -> None:
            self.failed = 0
            self.contexts = {
                100 + n: Context(
                    1, 100 + n, {"partition-id": n, "num-partitions": nodes}, RecordDict(), run_config or {}
                )
                for n in range(nodes)
            }

        def set_run(self, run: Any) -> None:
            del run

        @property
        def run(self) -> Any:
            raise NotImplementedError

        def create_message(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        def get_node_ids(self) -> Iterable[int]:
            return list(self.contexts)

        def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
            raise NotImplementedError

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
            raise NotImplementedError

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
            del timeout
            return [self._answer(message) for message in messages]

        def _answer(self, message: Any) -> Any:
            message.metadata.__dict__["_message_id"] = "here"
            try:
                return client_app(message, self.contexts[message.metadata.dst_node_id])
            except Exception as error:
                self.failed += 1
                return Message(Error(code=1, reason=repr(error)), reply_to=message)

    return Here()
