"""The schemas of training and audit files know every field, take what the readers take, and refuse what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leakscope.auditing.target_file import read_request
from leakscope.cli import app
from leakscope.cli.catalogue import SCHEMAS, schema_of
from leakscope.core.errors import InputError
from leakscope.scenario import ScenarioError, json_schema
from leakscope.scenario.text import read_text
from leakscope.training.file import file_model, read_training

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("train_*.yaml"))
AUDIT = """\
model: lenet_cpl
data: {name: digits}
client: {epochs: 2, batch_size: 1, rate: 0.05}
defences: [{name: clip, bound: 1.0}]
on_data: {policy: 3-1-7}
on_model: {alpha2: 0.2}
examples: 2
fail_above: {asr: 0.05, psnr: 18}
"""


def errors(kind: str, text: str) -> list[str]:
    """Return where a file does not fit its schema."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema_of(kind))
    return [str(error.json_path) for error in validator.iter_errors(read_text(text).data)]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_is_plain_json_and_closed(kind: str) -> None:
    schema: dict[str, Any] = json.loads(json.dumps(schema_of(kind)))
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["title"]
    assert schema["additionalProperties"] is False


def test_the_scenario_schema_is_that_of_the_scenario() -> None:
    assert schema_of("scenario") == json_schema()


def test_the_training_schema_has_every_field_with_a_description() -> None:
    properties = schema_of("train")["properties"]
    assert set(properties) == set(file_model().model_fields)
    assert all("description" in field for field in properties.values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_training_examples_fit(path: Path) -> None:
    assert errors("train", path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("rounds: 60", "rounds: 0", "$.rounds"),
        ("rounds: 60", "round: 60", "$"),
        ("name: iid", "name: idd", "$.partition"),
        ("seed: 0", "seed: -1", "$.seed"),
    ],
)
def test_what_the_reader_of_a_training_refuses_does_not_fit(tmp_path: Path, old: str, new: str, where: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(EXAMPLES[0].read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises((ScenarioError, InputError)):
        read_training(path)
    assert where in errors("train", path.read_text(encoding="utf-8"))


def test_an_audit_file_fits_and_a_broken_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(AUDIT, encoding="utf-8")
    assert read_request(path).target.examples == 2
    assert errors("audit", AUDIT) == []
    assert errors("audit", AUDIT.replace("examples: 2", "examples: two")) == ["$.examples"]
    assert errors("audit", AUDIT.replace("psnr: 18", "mse: 18")) == ["$.fail_above"]
    assert errors("audit", AUDIT.replace("name: clip", "name: clipp")) == ["$.defences[0]"]


def test_the_command_prints_each_kind_and_refuses_others() -> None:
    for kind in SCHEMAS:
        told = CliRunner().invoke(app, ["schema", "--kind", kind])
        assert json.loads(told.output) == schema_of(kind)
    assert json.loads(CliRunner().invoke(app, ["schema"]).output) == schema_of("scenario")
    refused = CliRunner().invoke(app, ["schema", "--kind", "trian"])
    assert isinstance(refused.exception, InputError)
    assert "'train'" in str(refused.exception)


def test_a_schema_replaces_plain_files_only(tmp_path: Path) -> None:
    out, kept = tmp_path / "schema.json", tmp_path / "kept.json"
    assert CliRunner().invoke(app, ["schema", "--out", str(out)]).exit_code == 0
    assert json.loads(out.read_text(encoding="utf-8")) == schema_of("scenario")
    kept.write_text("kept", encoding="utf-8")
    out.unlink()
    out.symlink_to(kept)
    assert isinstance(CliRunner().invoke(app, ["schema", "--out", str(out)]).exception, InputError)
    assert kept.read_text(encoding="utf-8") == "kept"
    assert isinstance(CliRunner().invoke(app, ["schema", "--out", str(tmp_path)]).exception, InputError)
