"""A sweep: the trials of a scenario, planned into chunks, run by an engine, landed in a store."""

from leakscope.experiments.sweep.chunk import Chunk
from leakscope.experiments.sweep.driver import Done, Watcher, run_scenario
from leakscope.experiments.sweep.plan import Plan, make_plan

__all__ = ["Chunk", "Done", "Plan", "Watcher", "make_plan", "run_scenario"]
