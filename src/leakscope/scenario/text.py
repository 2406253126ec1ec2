"""Reading YAML with the line of every value, so that errors can point to it.

Safe YAML only, without tags that build objects. Unlike in YAML 1.1, `1e-4` is a number. Duplicate keys, recursive values and
aliases that expand to millions of values are rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from leakscope.scenario.problems import Path, Problem, ScenarioError

MOST_VALUES = 200_000
MOST_DEPTH = 100
_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
)
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null"))


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the numbers of YAML 1.2."""


class _OwnLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The C loader if available, for files of the package: much faster, but a deeply nested text may crash the process."""


for _each in (_Loader, _OwnLoader):
    _each.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


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
    walk = _Walk(loader)
    data = walk.value(node, (), ())
    if walk.problems:
        raise ScenarioError(walk.problems, source)
    return Text(data, walk.lines)


class _Walk:
    """Converts nodes to plain data and collects their lines and errors."""

    def __init__(self, loader: _Loader) -> None:
        self.loader = loader
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.seen = 0

    def value(self, node: yaml.Node, path: Path, inside: tuple[int, ...]) -> object:
        """Return the plain value of a node."""
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.seen += 1
        if self.seen > MOST_VALUES:
            if self.seen == MOST_VALUES + 1:
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
        if node.tag == "tag:yaml.org,2002:float":
            try:
                return float(str(node.value).replace("_", "").replace(".inf", "inf").replace(".nan", "nan").lower())
            except ValueError:
                return str(node.value)
        try:
            str(node.value).encode("utf-8")
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # a lone surrogate is a ValueError
            message = str(error).split("\n")[0]
            self.problems.append(Problem(path, f"not a plain value ({message})", line))
            return None
