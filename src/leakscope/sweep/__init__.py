"""Sweeps: the trials of a scenario, planned into chunks, run by an engine and written to a store."""

from leakscope.sweep.chunk import Chunk
from leakscope.sweep.driver import Done, Watcher, run_scenario
from leakscope.sweep.plan import Plan, make_plan

__all__ = ["Chunk", "Done", "Plan", "Watcher", "make_plan", "run_scenario"]
