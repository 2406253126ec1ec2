"""The files of a policy search: settings, scores by group, result."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakscope.core.errors import InputError
from leakscope.search.candidates import (
    Candidate,
    Selection,
    draw_policies,
    front,
    hypervolume,
    select,
    share_worse_on_both,
)
from leakscope.search.settings import PolicySearch
from leakscope.store.disk import check_plain, make_folder, replacing

SETTINGS, ASKED, SCORES = "search.json", "asked.json", "scores"
NONE = "none"
MAY_CHANGE = ("keep", "threshold", "group", "candidates")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search: all candidates in drawing order, no policy as the reference, and the selection."""

    candidates: tuple[Candidate, ...]
    reference: Candidate | None
    selection: Selection
    left: int = 0

    @property
    def front(self) -> tuple[Candidate, ...]:
        """Return the Pareto front of the candidates."""
        return tuple(front(self.candidates))

    @property
    def area(self) -> float | None:
        """Return the hypervolume of the candidates relative to no policy; compares searches of equal cost."""
        return None if self.reference is None else hypervolume(self.candidates, self.reference)

    @property
    def worse(self) -> float | None:
        """Return the share of candidates that are worse than no policy on both scores."""
        return None if self.reference is None else share_worse_on_both(self.candidates, self.reference)


def result_of(search: PolicySearch, known: dict[str, Candidate], wanted: Iterable[str]) -> SearchResult:
    """Return the result of a search from the known scores of the wanted policies."""
    scored = tuple(known[policy] for policy in wanted if policy in known and policy != NONE)
    chosen = select(scored, threshold=search.threshold, keep=search.keep)
    return SearchResult(scored, known.get(NONE), chosen, max(search.candidates - len(scored), 0) + (NONE not in known))


def read_finished(directory: Path) -> tuple[PolicySearch, SearchResult]:
    """Return the latest settings of the search in a directory and its result so far; nothing is scored."""
    path = directory / ASKED
    try:
        search = PolicySearch(**_read(path))
    except OSError:
        raise InputError(f"{directory} holds no policy search (no {ASKED})") from None
    except TypeError as error:
        raise InputError(f"{path} is not readable ({error})") from None
    known = read_scores(directory)
    drawn = [NONE, *draw_policies(search.candidates, search.seed, shortest=search.shortest, longest=search.longest)]
    return search, result_of(search, known, drawn if search.method == "random" else known)


def claim(search: PolicySearch, directory: Path) -> None:
    """Write the settings, or raise if the directory holds another search."""
    whole = dataclasses.asdict(search)
    plain = {name: value for name, value in whole.items() if name not in MAY_CHANGE}
    path = directory / SETTINGS
    if path.exists():
        stored = {"sampler": PolicySearch().sampler} | _read(path)  # older files lack it
        if stored != plain:
            raise InputError(f"{directory} holds another search; use an empty directory or the same file")
    else:
        _write(path, plain)
    _write(directory / ASKED, whole)


def write_scores(directory: Path, name: str, scored: Sequence[Candidate], order: int) -> None:
    """Save the scores of a group; `order` is the number of policies scored before it."""
    folder = make_folder(directory / SCORES)
    _write(folder / f"{name}.json", {"order": order, "candidates": [dataclasses.asdict(each) for each in scored]})


def read_groups(directory: Path) -> list[list[Candidate]]:
    """Return the saved groups in the order they were scored."""
    landed: list[tuple[int, list[Candidate]]] = []
    for path in sorted((directory / SCORES).glob("*.json")):
        advice = "delete it to score its policies again"
        about = _read(path, advice)
        try:
            landed.append((int(about["order"]), [Candidate(**each) for each in about["candidates"]]))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise InputError(f"{path} is not readable ({error}); {advice}") from None
    return [group for _, group in sorted(landed, key=lambda pair: pair[0])]


def read_scores(directory: Path) -> dict[str, Candidate]:
    """Return policy -> scores of all saved groups, in the order they were scored."""
    return {each.policy: each for group in read_groups(directory) for each in group}


def _read(path: Path, advice: str = "use another directory") -> dict[str, Any]:
    """Return the JSON object in a plain file, or raise with the advice."""
    check_plain(path)  # opening a FIFO waits for ever
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not readable ({error}); {advice}") from None


def _write(path: Path, plain: object) -> None:
    with replacing(path) as file:
        file.write(json.dumps(plain, indent=1).encode())
