"""Engines: maps over chunks. `serial` in this process, `processes` side by side, `local` the better of the two.

    for chunk, result in local()(work, ((chunk, Needs(threads=1)) for chunk in chunks), stop=asked_to_stop, on_note=show):
        ...

Ray is one more, handed in from above: `leakscope.integrations.ray.ray_engine`.
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
from leakscope.sweep.engines.local import usable_cores as usable_cores
from leakscope.sweep.engines.processes import processes as processes
