"""Engines: maps over chunks. `serial` in this process, `processes` side by side, `local` the better of the two.

    for chunk, result in local()(work, ((chunk, Needs(threads=1)) for chunk in chunks), stop=asked_to_stop, tell=show):
        ...

Ray is one more, handed in from above: `leakscope.integrations.ray.ray_engine`.
"""

from leakscope.sweep.engines.contract import (
    Engine,
    LostChunkError,
    Needs,
    Note,
    Tell,
    listening,
    never,
    report,
    reporter,
)
from leakscope.sweep.engines.local import local, threads_for, usable_cores
from leakscope.sweep.engines.processes import processes
from leakscope.sweep.engines.serial import serial

__all__ = [
    "Engine",
    "LostChunkError",
    "Needs",
    "Note",
    "Tell",
    "listening",
    "local",
    "never",
    "processes",
    "report",
    "reporter",
    "serial",
    "threads_for",
    "usable_cores",
]
