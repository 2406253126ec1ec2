"""One chunk after another in this process: nothing to start, nothing to lose, and the reference for all other engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from leakscope.sweep.engines.contract import C, Needs, R, Tell, listening, name_of, never, torch_threads


def serial(
    work: Callable[[C], R],
    chunks: Iterable[tuple[C, Needs]],
    *,
    stop: Callable[[], bool] = never,
    tell: Tell | None = None,
) -> Iterator[tuple[C, R]]:
    """Yield (chunk, result) in the order given.

    >>> list(serial(len, [("ab", Needs()), ("abc", Needs())]))
    [('ab', 2), ('abc', 3)]
    """
    queue = iter(chunks)
    while not stop():
        drawn = next(queue, None)
        if drawn is None:
            return
        chunk, needs = drawn
        try:
            with torch_threads(needs.threads), listening(tell):
                result = work(chunk)
        except Exception as error:
            error.add_note(f"in chunk {name_of(chunk)}")
            raise
        yield chunk, result
