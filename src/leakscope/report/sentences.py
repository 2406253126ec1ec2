"""The private sentences of a run beside what each attack read off the updates, word by word."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.core.record import Cell
from leakscope.report.cells import ATTACK, axis_value_text, holds_text, name_of

if TYPE_CHECKING:
    from leakscope.core.record import Record
    from leakscope.play.text_leak import ShownSentence
    from leakscope.store import Run

MOST_SENTENCES = 16  # of one cell
UNORDERED = "bag_of_words"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceTable:
    """The first sentences of a cell, of its first clients without selection, and how many it has."""

    name: str
    shown: tuple[ShownSentence, ...]
    total: int


def sentence_tables(run: Run, *, most: int = MOST_SENTENCES) -> tuple[SentenceTable, ...]:
    """Return a table for each attack of a run on sentences; none for other data."""
    cells = [cell for cell in run.cells() if not cell.baseline and holds_text([cell])]
    tables = (_table(run, cell, most) for cell in cells)
    return tuple(table for table in tables if table.shown)


def _table(run: Run, cell: Cell, most: int) -> SentenceTable:
    records = sorted(run.records(cell=cell.id), key=lambda record: (record.seed, record.number))
    varied = [f"{axis} {axis_value_text(value)}" for axis, value in cell.axes.items() if axis != ATTACK]
    return SentenceTable(
        name=", ".join([name_of(cell), *varied]),
        shown=tuple(itertools.islice(_shown(run, cell, records), most)),
        total=sum(len(record.samples) for record in records),
    )


def _shown(run: Run, cell: Cell, records: list[Record]) -> Iterator[ShownSentence]:
    """Yield the sentences of the trials that kept theirs; a bag of words has no sentence, only words."""
    from leakscope.metrics.text_scoring import words_of
    from leakscope.play.text_leak import show_sentence
    from leakscope.scenario.encodings import words_of_data

    attack, words = cell.settings.get(ATTACK), words_of_data(cell)
    unordered = isinstance(attack, Mapping) and attack.get("name") == UNORDERED
    for record in records:
        tensors = run.tensors(record.trial)
        if not {"truth", "inputs", "pairing", "proved"} <= tensors.keys():
            continue
        guesses = [words_of(each) for each in tensors["inputs"].tolist()]
        others = {token for each in guesses for token in each}
        for truth, place in zip(tensors["truth"].tolist(), tensors["pairing"].tolist(), strict=True):
            guess = () if unordered else guesses[place]
            proved = bool(guess) and bool(tensors["proved"][place])
            yield show_sentence(record.number, words_of(truth), guess, None, words, others=others, proved=proved)
