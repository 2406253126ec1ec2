"""Scenarios: data, model, client, defences, attacks, knowledge and the axes to vary, as one file or one mapping."""

from leakscope.scenario.problems import Problem, ScenarioError
from leakscope.scenario.scenario import Scenario, read_scenario, scenario_of
from leakscope.scenario.schema import json_schema

__all__ = ["Problem", "Scenario", "ScenarioError", "json_schema", "read_scenario", "scenario_of"]
