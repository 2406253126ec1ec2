"""One Ray for the whole session, and the engines that must all keep the same laws."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from leakscope.sweep.engines import Engine, processes, serial

HERE = str(Path(__file__).parent)
sys.path.append(HERE)  # so that `engine_work` is a module here and, through sys.path, in worker processes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped, where the environment says that every extra must be there (LEAKSCOPE_EXTRAS=required)."""
    report = yield
    if report.skipped and os.environ.get("LEAKSCOPE_EXTRAS") == "required":
        report.outcome = "failed"
        report.longrepr = f"{item.name} was skipped, though every extra must be there: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Start a Ray with two cores whose workers can import `engine_work`."""
    ray = pytest.importorskip("ray")
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(params=["serial", *(pytest.param(name, marks=pytest.mark.slow) for name in ("processes", "ray"))])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "ray":
        request.getfixturevalue("cluster")
        from leakscope.integrations.ray import ray_engine

        return ray_engine()
    return {"serial": serial, "processes": processes(2)}[request.param]
