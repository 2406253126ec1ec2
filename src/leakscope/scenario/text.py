"""Reading YAML with the line of every value, so that errors can point to it.

Plain values are those of YAML 1.2 (core schema): `1e-4` is a number, `010` is 10, `1:30`, `1_000` and `yes` are text. Tags that build
objects, duplicate keys and recursive values are rejected. Limits on length, depth and number of values act while the text is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import yaml

from leakscope.scenario.problems import Path, Problem, ScenarioError

MOST_BYTES = 2**19
MOST_VALUES = 20_000
MOST_DEPTH = 100
MOST_DIGITS = 100
TAG = "tag:yaml.org,2002:"
SCALARS: dict[str, tuple[str, str, Callable[[str], object]]] = {  # pattern, first characters, value of the text
    "null": (r"~|null|Null|NULL|", "~nN", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text[0] in "tT"),
    "int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "-+0123456789",
        lambda text: int(text, 0 if text[1:2] in ("o", "x") else 10),
    ),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
    "str": (r"(?s).*", "", str),
}
PLAIN_TAGS = frozenset({f"{TAG}{kind}" for kind in SCALARS} | {f"{TAG}map", f"{TAG}seq"})


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the plain values of YAML 1.2, which stops at the limits."""

    values = depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; more or deeper ones than the limits allow are an error."""
        self.values += 1
        self.depth += 1
        if self.values > MOST_VALUES or self.depth > MOST_DEPTH:
            what = (
                f"nested deeper than {MOST_DEPTH}" if self.depth > MOST_DEPTH else f"more than {MOST_VALUES:,} values"
            )
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=what, problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _OwnLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The C loader if available, for files of the package: much faster, but a deeply nested text may crash the process."""


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 or 1.2 would read as something other than text."""


_Loader.yaml_implicit_resolvers = {}
_OwnLoader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first, _) in SCALARS.items():
    for _each in (_Loader, _OwnLoader, _Dumper):
        if _first:
            _each.add_implicit_resolver(
                TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), [*_first, *[""] * (_kind == "null")]
            )


def write_text(data: object) -> str:
    """Return plain data as YAML that reads the same in 1.1 and 1.2."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


@dataclass(slots=True)
class Text:
    """The plain data of a file, and the line of each path."""

    data: object = None
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """Return the line of a path, or of its nearest parent."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def read_text(text: str, source: str = "", *, own: bool = False) -> Text:
    """Return the data of a YAML text with its lines, or raise all syntax errors; `own` texts came with the package."""
    if len(text) > MOST_BYTES and not own:
        raise ScenarioError(
            [Problem((), f"the text has {len(text):,} characters, at most {MOST_BYTES:,} are read")], source
        )
    try:
        loader = (_OwnLoader if own else _Loader)(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        raise ScenarioError(
            [Problem((), f"not readable as YAML: {message}", mark.line + 1 if mark else None)], source
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = str(error).split("\n")[0] or type(error).__name__
        raise ScenarioError([Problem((), f"not readable as YAML: {message}")], source) from None
    if node is None:
        raise ScenarioError([Problem((), "the file is empty; see examples/ for scenarios to start from", 1)], source)
    walk = _Walk()
    data = walk.value(node, (), ())
    if walk.problems:
        raise ScenarioError(walk.problems, source)
    return Text(data, walk.lines)


class _Walk:
    """Converts nodes to plain data and collects their lines and errors."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.seen = 0

    def value(self, node: yaml.Node, path: Path, inside: tuple[int, ...]) -> object:
        """Return the plain value of a node."""
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if self.seen > MOST_VALUES:
            return None
        self.seen += 1 + len(node.value) // 100  # aliases repeat values, and long texts
        if self.seen > MOST_VALUES:
            self.problems.append(Problem(path, f"the file unfolds into more than {MOST_VALUES:,} values", line))
            return None
        if id(node) in inside or len(inside) > MOST_DEPTH:
            what = "a value contains itself" if id(node) in inside else f"nested deeper than {MOST_DEPTH}"
            self.problems.append(Problem(path, what, line))
            return None
        if node.tag not in PLAIN_TAGS:
            self.problems.append(Problem(path, f"not a plain value (tag {node.tag})", line))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*inside, id(node)))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i), (*inside, id(node))) for i, item in enumerate(node.value)]
        return self._scalar(node, path, line)

    def _mapping(self, node: yaml.MappingNode, path: Path, inside: tuple[int, ...]) -> dict[str, object]:
        mapping: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(path, "a key must be a plain word", line))
                continue
            key = str(key_node.value)
            if key in mapping:
                self.problems.append(Problem((*path, key), "given twice", line))
            self.lines[(*path, key)] = line
            mapping[key] = self.value(value_node, (*path, key), inside)
        return mapping

    def _scalar(self, node: yaml.Node, path: Path, line: int) -> object:
        kind, text = node.tag.removeprefix(TAG), str(node.value)
        try:
            pattern, _, value_of = SCALARS[kind]
            text.encode("utf-8")  # a lone surrogate is a ValueError
            if not re.fullmatch(pattern, text) or (kind in ("int", "float") and len(text) > MOST_DIGITS):
                raise ValueError(f"{text[:40]!r} is no {kind} of at most {MOST_DIGITS} digits")
            return value_of(text)
        except (KeyError, ValueError) as error:
            self.problems.append(Problem(path, f"not a plain value ({error})", line))
            return None
