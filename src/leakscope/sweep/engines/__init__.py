"""Engines: maps over chunks. `serial` runs in this process, `processes` in several, `local` chooses between them.

    for chunk, result in local()(work, ((chunk, Needs(threads=1)) for chunk in chunks), stop=asked_to_stop, on_note=show):
        ...
The engine for Ray is `leakscope.integrations.ray.ray_engine`.
"""

from leakscope.sweep.engines.contract import (
    Engine as Engine,
    LostChunkError as LostChunkError,
    Needs as Needs,
    Note as Note,
)
from leakscope.sweep.engines.contract import OnNote as OnNote, engine_of as engine_of, listening as listening
from leakscope.sweep.engines.contract import never as never, report as report, reporter as reporter
from leakscope.sweep.engines.local import local as local, serial as serial, threads_for as threads_for
from leakscope.sweep.engines.local import usable_cores as usable_cores, visible_gpus as visible_gpus
from leakscope.sweep.engines.processes import processes as processes
