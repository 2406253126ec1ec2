"""The JSON schemas of the files that users write, for editors: a scenario, a training, an audit."""

from __future__ import annotations

from typing import Any

from leakscope.core.registry import lookup

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON schema of one kind of file: 'scenario', 'train' or 'audit'."""
    made: dict[str, Any] = lookup(SCHEMAS, kind, "kind of file")()
    return made


def _scenario() -> dict[str, Any]:
    from leakscope.scenario import json_schema

    return json_schema()


def _train() -> dict[str, Any]:
    from leakscope.training.file import file_model

    return {"$schema": DIALECT, **file_model().model_json_schema(), "title": "leakscope training"}


def _audit() -> dict[str, Any]:
    from leakscope.auditing.target_file import file_model

    return {"$schema": DIALECT, **file_model().model_json_schema(), "title": "leakscope audit"}


SCHEMAS = {"scenario": _scenario, "train": _train, "audit": _audit}
