from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.attacks.recipes import ATTACKS
from leakscope.core.errors import InputError
from leakscope.data.resizing import resize
from leakscope.scenario import ScenarioError, identity, json_schema, read_scenario, scenario_of
from leakscope.scenario.cell import read_settings
from leakscope.scenario.components import KINDS
from leakscope.scenario.identity import cell_id
from leakscope.scenario.scenario import scenario_from_text
from leakscope.scenario.schema import check_cell
from leakscope.scenario.text import read_text
from leakscope.sweep import run_scenario
from leakscope.sweep.driver import unfold
from leakscope.sweep.engines import serial
from leakscope.sweep.objects import batch_of, data_of, items_of, load_data, network_of

SMALL: dict[str, Any] = {"data": "fashion_mnist", "model": "lenet_cpl", "attack": "cpl", "trials": 2, "baselines": []}


def small(**changed: Any) -> dict[str, Any]:
    return {**SMALL, **changed}


def problems(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_text(text, "s.yaml")
    return [(p.line, p.text("")) for p in caught.value.problems]


# -- reading


def test_every_value_knows_its_line() -> None:
    read = read_text("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n")
    assert [read.line(p) for p in [("a",), ("b",), ("b", 1), ("b", 1, "d"), ("b", 1, "none")]] == [1, 2, 4, 5, 4]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: 1\na: 2", "given twice"),
        ("a: &x [*x]", "contains itself"),
        ("a: !!python/object:os.system {}", "plain value|YAML"),
        ("a: [1", "YAML"),
        ("", "empty"),
        ("- 1", "mapping"),
        ("? [1]\n: 2", "plain word|YAML"),
        ("a: \x00", "YAML"),
    ],
)
def test_bad_yaml_is_one_clear_line(text: str, word: str) -> None:
    with pytest.raises(ScenarioError, match=word):
        scenario_from_text(text, "s.yaml")


def test_aliases_that_explode_are_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ScenarioError, match="unfolds into more"):
        scenario_from_text("\n".join(lines))


# -- pieces and defaults


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_a_name_alone_builds_the_recipe_with_its_published_settings(name: str) -> None:
    told, found = check_cell(small(attack=name))
    assert not found
    assert told is not None
    built = KINDS["attack"].build(told["attack"])
    assert repr(built) == repr(ATTACKS[name]())


def test_two_axes_on_one_field_are_told_even_where_one_removes_the_other() -> None:
    with pytest.raises(ScenarioError, match="the same field"):
        scenario_of({**small(), "defences": ["sign"], "grid": {"defences.0.sigma": [1], "defences": [[]]}})


@pytest.mark.parametrize("kind", ["start", "optimiser", "priors", "weights", "defences"])
def test_describe_is_the_way_back_from_build(kind: str) -> None:
    table = KINDS[kind].table
    for name, make in table.items():
        if isinstance(make, type):
            piece = make("a/file") if name == "checkpoint" else make()
            told = KINDS[kind].describe(piece)
            assert told["name"] == name
            assert repr(KINDS[kind].build(told)) == repr(piece)


def test_settings_reach_the_pieces() -> None:
    told, _ = check_cell(
        small(
            attack={"name": "cpl", "start": {"name": "patterned", "tiles": 4}, "objective": "cosine", "restarts": 3},
            client={"local": {"epochs": 2, "rate": 0.5}},
        )
    )
    assert told is not None
    attack = KINDS["attack"].build(told["attack"])
    assert attack.start.tiles == 4
    assert attack.objective.distance.__name__ == "cosine"
    assert attack.restarts == 3
    assert told["client"]["local"]["epochs"] == 2
    assert told["client"]["local"]["batch_size"] is None


def test_every_mistake_is_told_at_once_with_its_line_and_the_near_name() -> None:
    text = """\
name: many mistakes
data: {name: fashion_mnst, samples: 0}
model: {name: lenet_cpl, widht: 3}
attacks:
  - cpl
  - {name: cplx}
  - {name: dlg, iterations: -3, iteratoins: 4}
trails: 4
client: {local: {epochs: 0}}
grid:
  attack.iterations: [10, foo]
  attacks.0.start: [normal]
  knowledge.labels: 3
zip:
  weights.a: [0.5, -1]
  model.activation: [tanh]
"""
    found = problems(text)
    expected = [
        (2, "'fashion_mnst'.*'fashion_mnist'"),
        (3, "'widht'.*'width'"),
        (6, "'cplx'.*'cpl'"),
        (7, "'iteratoins'.*'iterations'"),
        (8, "'trails'.*'trials'"),
        (9, "epochs .*got 0"),
        (11, "integer, got 'foo'"),
        (12, "write attack.<setting>"),
        (13, "knowledge.labels: .*list"),
        (15, "equal length"),
    ]
    for line, words in expected:
        assert any(at == line and re.search(words, said) for at, said in found), (line, words, found)


def test_a_problem_of_an_axis_value_stands_at_that_value() -> None:
    text = "data: fashion_mnist\nmodel: lenet_cpl\nattack: cpl\ndefences: [gaussian_noise]\ngrid:\n  defences.0.sigma:\n    - 0\n    - -1\n"
    ((line, said),) = problems(text)
    assert line == 8
    assert re.fullmatch(r"grid\.defences\.0\.sigma\.1: .*got -1\.0", said)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": {"name": "lenet_cpl", "width": 10**6}}, "parameters"),
        ({"model": {"name": "lenet_cpl", "activation": "nope"}}, "unknown activation"),
        ({"defences": ["sign", "sign"]}, "stacked twice"),
        ({"defences": ["sparsify", "gaussian_noise"]}, "noise first"),
        ({"trials": 5000}, "at most 1000 trials"),
        ({"server": "malicious"}, "a manipulation among the attacks"),
        ({"data": {"name": "fashion_mnist", "first": 10**12}}, "at most 0 trials"),
        ({"data": "breast_cancer"}, "model"),
        ({"data": {"name": "breast_cancer", "size": 32}}, "only pictures"),
        ({"data": {"name": "fashion_mnist", "size": 3}, "model": "cnn_mnist"}, "at least 4x4"),
        ({"data": {"name": "fashion_mnist", "size": 0}}, "size must be"),
        ({"data": {"name": "fashion_mnist", "size": 1024}, "baselines": ["class_mean"]}, "12 GiB"),
        ({"data": {"name": "fashion_mnist", "samples": 101, "mix": "equal"}}, "100 of one"),
        ({"data": {"name": "fashion_mnist", "samples": 202, "mix": "two"}}, "101 of each"),
        ({"data": {"name": "fashion_mnist", "samples": 80, "mix": "equal"}, "trials": 11}, "at most 10 trials"),
        ({"data": {"name": "fashion_mnist", "samples": 400, "mix": "random"}, "trials": 3}, "at most 2 trials"),
        ({"data": "camera", "trials": 1, "baselines": ["class_mean"]}, "part train"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_runs(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        unfold(scenario_of(small(**changed)))


@pytest.mark.parametrize(
    ("defence", "words"),
    [("sparsify", "drop or share"), ("gaussian_noise", "sigma"), ("laplace_noise", "sigma or scale")],
)
def test_a_defence_without_a_strength_is_refused_and_one_of_0_is_not(defence: str, words: str) -> None:
    said = rf"defences\.1(\.0)?: {defence} .*strength .*give {words}$"
    text = "data: fashion_mnist\nmodel: lenet_cpl\nattack: cpl\ndefences:\n  - {name: clip, bound: 1}\n"
    for way in (defence, f"{{name: {defence}}}", f"{{name: {defence}, {words.split()[-1]}: null}}"):
        assert any(line == 6 and re.match(said, words) for line, words in problems(f"{text}  - {way}\n"))
    assert scenario_from_text(f"{text}  - {{name: {defence}, {words.split()[0]}: 0}}\n").cell_count == 2
    assert scenario_from_text(f"{text}  - {defence}\ngrid: {{defences.1.{words.split()[0]}: [0.1]}}\n").cell_count == 2
    varied = f"{text}  - sign\ngrid:\n  defences:\n    - []\n    - [{defence}]\n"
    ((line, problem),) = problems(varied)
    assert line == 10
    assert re.match(rf"grid\.{said}", problem)


# -- axes


def test_grid_and_zip_span_the_product_and_set_what_they_name() -> None:
    scenario = scenario_of(
        {
            "data": "fashion_mnist",
            "model": "lenet_cpl",
            "attacks": ["cpl", {"name": "cpl", "start": "normal"}],
            "defences": ["gaussian_noise"],
            "knowledge": {"defence": True},
            "grid": {"defences.0.sigma": [0, 0.1, 0.2], "attack.iterations": [5, 6]},
            "zip": {"model.activation": ["sigmoid", "tanh"], "weights.a": [0.5, 0.3]},
        }
    )
    cells = list(scenario.cells())
    assert len(cells) == 2 * 3 * 2 * 2 == len({cell.id for cell in cells})
    for cell in cells:
        told: Any = cell.settings
        assert told["defences"][0]["sigma"] == cell.axes["defences.0.sigma"]
        assert told["attack"]["iterations"] == cell.axes["attack.iterations"]
        assert (told["model"]["activation"], told["weights"]["a"]) in {("sigmoid", 0.5), ("tanh", 0.3)}
        assert cell.axes["attack"] == f"cpl start={told['attack']['start']['name']}"


def test_axes_that_set_the_same_field_are_refused() -> None:
    with pytest.raises(ScenarioError, match="same field"):
        scenario_of(small(grid={"model": ["lenet_cpl"], "model.activation": ["tanh"]}))


@pytest.mark.parametrize(
    "path", ["grid", "nope", "attack.nope", "defences.0.sigma", "data.samples.x", "", "model.0", "seeds.5"]
)
def test_a_path_that_leads_nowhere_is_a_clear_error(path: str) -> None:
    with pytest.raises(InputError):
        scenario_of(small(grid={path: [1, 2]}))


def test_millions_of_cells_are_refused_without_being_made() -> None:
    with pytest.raises(ScenarioError, match="at most"):
        scenario_of(
            small(
                grid={f"model.{i}": list(range(10**3)) for i in ("width", "channels")}
                | {"data.first": list(range(10**3))}
            )
        )


# -- identity


def test_titles_and_counts_do_not_change_what_a_cell_is_and_everything_else_does() -> None:
    def identity(**changed: Any) -> str:
        told, found = check_cell(small(**changed))
        assert told is not None, found
        return cell_id(told)

    base = identity()
    assert base == identity(trials=7, seeds=[3], attack={"name": "cpl", "label": "mine"}, baselines=["class_mean"])
    others: list[dict[str, Any]] = [
        {"data": {"name": "fashion_mnist", "first": 1}},
        {"data": {"name": "fashion_mnist", "mix": "equal"}},
        {"data": {"name": "fashion_mnist", "size": 28}},
        {"model": {"name": "lenet_cpl", "width": 11}},
        {"attack": {"name": "cpl", "iterations": 299}},
        {"attack": "sme", "client": {"local": {"epochs": 2}}},
        {"attack": {"name": "sme", "alpha_every": 2}, "client": {"local": {"epochs": 2}}},
        {"attack": "matching"},
        {"attack": {"name": "matching", "film_end": True}},
        {"weights": {"name": "uniform", "a": 0.4}},
        {"client": {"loss": "mse"}},
        {"knowledge": {"labels": True}},
        {"precision": {"dtype": "float64"}},
        {"defences": [{"name": "gaussian_noise", "sigma": 0.0}], "knowledge": {"defence": False}},
    ]
    assert len({base, *(identity(**other) for other in others)}) == len(others) + 1


@pytest.mark.parametrize("mix", ["given", "random", "equal", "two"])
def test_the_mix_decides_the_labels_of_every_batch(mix: str) -> None:
    def held(trials: int) -> list[tuple[int, ...]]:
        data = {"name": "fashion_mnist", "samples": 4, "mix": mix, "first": 100}
        return [trial.items for trial in unfold(scenario_of(small(data=data, trials=trials))).trials]

    items, data = held(40), load_data("fashion_mnist")
    assert items[:3] == held(3)
    assert len({item for batch in items for item in batch}) == 160
    assert min(item for batch in items for item in batch) >= 100
    kinds = [len(set(data.labels("test", list(batch)).tolist())) for batch in items]
    assert set(kinds) == {"equal": {1}, "two": {2}}.get(mix, set(kinds))
    assert max(kinds) > 2 or mix in ("equal", "two")


@pytest.mark.parametrize("size", [16, 28, 64])
def test_the_network_sees_pictures_of_the_asked_size(size: int) -> None:
    told, _ = check_cell(small(data={"name": "fashion_mnist", "size": size, "samples": 2}))
    assert told is not None
    settings = read_settings(told)
    batch = batch_of(
        data_of(settings.data), settings.data.part, [items_of(settings.data, number) for number in range(3)]
    )
    assert tuple(network_of(settings).input_shape) == (1, size, size) == tuple(batch.inputs.shape[2:])
    assert torch.equal(batch.inputs[1], resize(load_data("fashion_mnist").pictures("test", [2, 3]), size))


def test_filters_are_doubled_along_with_the_size() -> None:
    data = {"name": "fashion_mnist", "size": 32}
    axes = {"data.size": [32, 64, 128], "model.width": [12, 24, 48]}
    cells = unfold(scenario_of(small(data=data, model={"name": "lenet_cpl"}, zip=axes))).cells
    shapes = [tuple(network_of(read_settings(cell.settings)).parameters["conv1.weight"].shape) for cell in cells]
    heads = [network_of(read_settings(cell.settings)).parameters["head.weight"].shape[1] for cell in cells]
    assert shapes == [(12, 1, 5, 5), (24, 1, 5, 5), (48, 1, 5, 5)]
    assert heads == [12 * 8 * 8, 24 * 16 * 16, 48 * 32 * 32]


def test_sizes_do_not_share_a_chunk_and_every_one_is_run(tmp_path: Path) -> None:
    from leakscope.store import Run

    told = small(
        data={"name": "digits", "mix": "two", "samples": 2},
        model={"name": "mlp", "hidden": [8]},
        attack={"name": "cpl", "iterations": 1},
        grid={"data.size": [None, 4, 12]},
        baselines=["class_mean"],
        precision={"form": "native"},
    )
    done = run_scenario(scenario_of(told), tmp_path / "run", engine=serial, measure=False)
    assert done.left == 0
    run = Run.open(tmp_path / "run")
    cells = {cell.id: cell for cell in run.cells()}
    for record in run.records():
        settings: Any = cells[record.cell].settings
        side = settings["data"]["size"] or 8
        assert tuple(run.tensors(record.trial)["truth"].shape) == (2, 1, side, side)


def test_raising_the_trials_keeps_those_there_are() -> None:
    few = {t.id for t in unfold(scenario_of(small(trials=2))).trials}
    many = {t.id for t in unfold(scenario_of(small(trials=5))).trials}
    assert few < many
    assert len(many) == 5


# -- files


def test_the_json_schema_knows_every_field_and_piece() -> None:
    schema = json_schema()
    assert {"data", "model", "attack", "attacks", "grid", "zip", "trials", "seeds"} <= set(schema["properties"])
    text = json.dumps(schema)
    for kind in KINDS.values():
        assert all(f'"{name}"' in text for name in kind.table)
    assert "tolerance_change" in text
    assert "iterations" in text


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: [", b"\x00" * 10])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_scenario(path)
    with pytest.raises(InputError, match="cannot read"):
        read_scenario(tmp_path / "none.yaml")


# -- whatever is thrown at it

WORDS = st.sampled_from(
    [
        "cpl",
        "dlg",
        "ig",
        "lenet_cpl",
        "fashion_mnist",
        "name",
        "sigma",
        "gaussian_noise",
        "normal",
        "",
        "nope",
        "é<script>",
    ]
)
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([10**30, -(10**30), 2**31, 2**63]),
    st.floats(),
    st.sampled_from([1e308, 5e-324]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.text(max_size=5))
KEYS = st.one_of(
    WORDS,
    st.sampled_from(
        [
            "data",
            "model",
            "attack",
            "attacks",
            "trials",
            "seeds",
            "grid",
            "zip",
            "client",
            "local",
            "epochs",
            "knowledge",
            "labels",
            "defences",
            "start",
            "optimiser",
            "precision",
            "weights",
            "baselines",
            "samples",
            "mix",
            "size",
            "iterations",
        ]
    ),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)), max_leaves=8
)
PATHS = st.one_of(
    st.sampled_from(
        [
            "trials",
            "data.samples",
            "data.mix",
            "data.size",
            "attack.iterations",
            "attack.start",
            "defences.0.sigma",
            "model.width",
            "client.local",
            "seeds",
            "attack",
            "model",
            "precision.dtype",
            "weights.a",
            "defences",
            "attack.optimiser.rate",
        ]
    ),
    st.text(max_size=6),
)
AXES = st.dictionaries(PATHS, st.one_of(st.lists(VALUES, max_size=3), VALUES), max_size=2)


@st.composite
def broken(draw: st.DrawFn) -> dict[str, Any]:
    made: dict[str, Any] = dict(small(defences=["gaussian_noise"]))
    for key in draw(st.lists(KEYS, max_size=2)):
        made[key] = draw(VALUES)
    if draw(st.booleans()):
        made["grid"] = draw(AXES)
    if draw(st.booleans()):
        made["zip"] = draw(st.one_of(AXES, st.lists(AXES, max_size=2)))
    if draw(st.integers(0, 9)) == 0:
        cycle: list[Any] = [made.get("grid")]
        cycle.append(cycle)
        made["grid"] = {"trials": cycle}
    return made


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=broken())
def test_any_scenario_gives_a_plan_or_a_clear_error(data: dict[str, Any]) -> None:
    try:
        sweep = unfold(scenario_of(data))
    except InputError as refused:
        error = str(refused)
    else:
        assert sweep.trials
        return
    assert error
    assert "Traceback" not in error


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="abc: -[]{}&*!|>'\"\n\t#0123456789.e~", max_size=60))
def test_any_text_gives_a_scenario_or_a_clear_error(text: str) -> None:
    with pytest.raises(InputError):
        scenario_from_text(text, "s.yaml")


@pytest.mark.parametrize(
    ("change", "said"), [({"grid": {"trials": [2, 4]}}, "trials cannot"), ({"seeds": [0, 0]}, "once")]
)
def test_what_would_count_a_trial_twice_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        scenario_of(small(**change))


def test_two_mistakes_in_one_piece_are_both_told() -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_of(small(attack={"name": "cpl", "iterations": -3, "threshold": -1.0}))
    assert "iterations" in str(caught.value)
    assert "threshold" in str(caught.value)


def test_settings_added_later_leave_the_ids_of_older_cells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "RESULTS", 4)  # the edition of these ids
    ids = [cell.id for name in ("cpl", "ig") for cell in scenario_of(small(attack=name)).cells()]
    assert ids == ["ed1af80d50860715", "f7d99637889197f3"]


@pytest.mark.slow
def test_buffers_and_modes_of_batch_norm_are_axes(tmp_path: Path) -> None:
    axes = {"client.sends_buffers": [False, True], "client.norm": ["train", "eval"], "knowledge.norm": [None, "train"]}
    given = small(
        model={"name": "resnet20", "width": 2},
        data={"name": "fashion_mnist", "samples": 2},
        attack={"name": "ig", "iterations": 1, "bn": 0.1},
        knowledge={"labels": True},
        trials=1,
        grid=axes,
    )
    cells = list(scenario_of(given).cells())
    assert len({cell.id for cell in cells}) == 8
    chosen = [read_settings(cell.settings) for cell in cells]
    assert {(each.client.sends_buffers, each.client.norm, each.knowledge.norm) for each in chosen} == {
        (sends, norm, assumed) for sends in (False, True) for norm in ("train", "eval") for assumed in (None, "train")
    }
    one = {path: values[1:] for path, values in axes.items()}
    run_scenario(scenario_of({**given, "grid": one}), tmp_path / "run", engine=serial, measure=False)
