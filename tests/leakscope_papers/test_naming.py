"""A cell in the words of the paper."""

from __future__ import annotations

from leakscope_papers.items import Item, Part, Reading, Rule, Scale
from leakscope_papers.naming import belongs, meets, name_cell, setting_at

SETTINGS = {
    "data": {"name": "mnist"},
    "defences": [{"name": "gaussian_noise", "sigma": 0.1}],
    "knowledge": {"defence": True},
}


def item(**where: object) -> Item:
    return Item(name="x", about="", parts=(), scales={"smoke": Scale()}, where=where)  # type: ignore[arg-type]


def named(rule: Rule, reading: Reading = Reading(), part: Part = Part(name="p")) -> object:  # noqa: B008  frozen
    return name_cell(item(a=rule), part, reading, SETTINGS)


def test_a_path_is_followed_through_mappings_and_lists() -> None:
    assert setting_at(SETTINGS, "defences.0.sigma") == 0.1
    assert setting_at(SETTINGS, "defences.1.sigma") is None
    assert setting_at(SETTINGS, "data.name.first") is None


def test_words_translate_and_otherwise_catches_the_rest() -> None:
    path = "defences.0.sigma"
    assert named(Rule(path=path)) == {"a": 0.1}
    assert named(Rule(path=path, words={"strong": 0.1})) == {"a": "strong"}
    assert named(Rule(path=path, words={"strong": [1.0, 0.1]})) == {"a": "strong"}
    assert named(Rule(path=path, words={"none": 0}, otherwise="gaussian")) == {"a": "gaussian"}
    assert named(Rule(path=path, words={"none": 0}, strict=True)) is None
    assert named(Rule(path="client.local.epochs")) == {}


def test_a_reading_overrides_a_part_which_overrides_the_item_and_the_part_comes_first() -> None:
    reading, part = Reading(where={"a": "third"}), Part(name="p", where={"b": "second", "a": "second"})
    rule = Rule(path="data.name")
    assert name_cell(item(c="first", a=rule, b=rule), part, reading, SETTINGS) == {
        "b": "second",
        "a": "third",
        "c": "first",
    }
    assert list(name_cell(item(c="first", a=rule, b=rule), part, reading, SETTINGS) or ()) == ["b", "a", "c"]


def test_conditions_keep_types_apart() -> None:
    assert belongs(SETTINGS, Reading(only={"knowledge.defence": True}), Reading(only={"defences.0.sigma": [0, 0.1]}))
    assert not belongs(SETTINGS, Reading(only={"knowledge.defence": 1}))
    assert meets({"drop": 0.1 + 0.2}, {"drop": 0.3})
    assert not meets({"sigma": "10e-2"}, {"sigma": 0.1})
    assert meets({"x": 1}, {"y": None})
    assert not meets({"y": 1}, {"y": None})
