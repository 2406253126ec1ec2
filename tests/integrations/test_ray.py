"""What is Ray's alone: what a task asks for, joining and leaving, and a Ray that is not there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import engine_work
import pytest
from engine_work import Chunk

from leakscope.core.errors import InputError
from leakscope.core.plugins import import_plugin
from leakscope.integrations.ray import _Crew, ray_engine
from leakscope.scenario import scenario_of
from leakscope.sweep.engines import Needs, serial
from leakscope.sweep.engines.driving import Job
from own_pieces import EXAMPLE, PACKAGE, no_plugins, short_scenario
from sweeper import content, sweep

pytestmark = pytest.mark.slow  # a Ray takes seconds to come and to go

HERE = Path(__file__).parent
FOUR = [(Chunk(f"c{i}", i), Needs()) for i in range(4)]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'pip install "leakscope\[ray\]"'):
        ray_engine()


@pytest.mark.parametrize("settings", [{"cores": 0}, {"in_flight": 0}, {"address": "auto", "cores": 2}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        ray_engine(**settings)  # type: ignore[arg-type]


class Nodes:
    """As much of Ray as the crew asks before it hands over a chunk."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.resources = resources

    def nodes(self) -> list[dict[str, object]]:
        return [{"Alive": True, "Resources": each} for each in self.resources] + [{"Alive": False, "Resources": {}}]

    def remote(self, **_: object) -> Callable[[object], None]:
        return lambda _: None


def crew(*nodes: dict[str, float], in_flight: int | None = None, fixed: bool = True) -> _Crew[int]:
    return _Crew(Nodes(*nodes), in_flight, None, fixed=fixed)


def filled(crew: _Crew[int], needs: Needs) -> int:
    """Return how many such chunks a crew takes."""
    while crew.takes(needs):
        crew.held[len(crew.held)] = Job(0, needs, b"")
    return len(crew.held)


def test_ray_gets_as_many_chunks_as_its_nodes_can_run() -> None:
    two = {"CPU": 4.0, "GPU": 1.0, "memory": 100.0}, {"CPU": 3.0, "memory": 1000.0}
    assert filled(crew(*two), Needs()) == 7
    assert filled(crew(*two), Needs(threads=2)) == 3
    assert filled(crew(*two), Needs(gpus=0.5)) == 2
    assert filled(crew(*two), Needs(memory=60)) == 4
    assert filled(crew(*two, in_flight=100), Needs()) == 100
    assert filled(crew(*two, in_flight=1), Needs()) == 1


def test_a_chunk_that_no_node_can_run_is_refused_or_waited_for() -> None:
    with pytest.raises(InputError, match=r"5 CPUs, 0 GPUs .*: 4\)"):
        crew({"CPU": 4.0}).takes(Needs(threads=5))
    growing = crew({"CPU": 4.0}, fixed=False)
    with pytest.warns(UserWarning, match="waiting for one"):
        assert growing.takes(Needs(threads=5))


@pytest.mark.filterwarnings("ignore:the work warns")
def test_an_engine_left_early_leaves_a_ray_that_goes_on(cluster: None) -> None:
    made = ray_engine()(engine_work.describe, FOUR)
    next(made)
    made.close()  # type: ignore[attr-defined]
    assert len(list(ray_engine(in_flight=1)(engine_work.describe, FOUR))) == 4


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def script(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    """Run a driver with a Ray of its own."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    head = "import engine_work, signal, sys\nfrom leakscope.integrations.ray import ray_engine\n"
    head += "from leakscope.sweep.engines import Needs\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + body], env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )


def test_a_ray_of_our_own_comes_and_goes_and_a_wrong_address_is_said_at_once(tmp_path: Path) -> None:
    body = f"""
import ray, time
from leakscope.core.errors import InputError
try:
    list(ray_engine("127.0.0.1:{free_port()}")(engine_work.linger, []))
except InputError as error:
    print(error)
signal.signal(signal.SIGTERM, mine := lambda *_: None)
chunks = [(engine_work.Chunk("c%d" % i, i), Needs()) for i in range(3)]
print(sorted(result["square"] for _, result in ray_engine(cores=1)(engine_work.describe, chunks)))
print(signal.getsignal(signal.SIGTERM) is mine, ray.is_initialized())
"""
    told = script(tmp_path, body).communicate(timeout=120)[0].splitlines()
    assert told[0].startswith("no Ray cluster")
    assert told[1:] == ["[0, 1, 4]", "True False"]


def test_a_killed_driver_leaves_no_ray_behind(tmp_path: Path) -> None:
    body = f"""
chunks = [(engine_work.Chunk("victim", i, {str(tmp_path)!r}), Needs()) for i in range(1)]
list(ray_engine(cores=1)(engine_work.hang_once, chunks))
"""
    driver = script(tmp_path, body)
    pid = written_number(tmp_path)
    driver.kill()
    driver.wait()
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive(pid)


def test_a_cluster_is_joined_by_its_address_and_may_lose_a_node(tmp_path: Path) -> None:
    body = f"""
import threading, time
from pathlib import Path
from ray.cluster_utils import Cluster

folder = Path({str(tmp_path)!r})
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0, "include_dashboard": False}})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

def remove_the_victims_node():
    while not (told := [path.read_text() for path in folder.glob("victim-*")]) or not told[0]:
        time.sleep(0.1)
    parent = int(Path("/proc/%s/stat" % told[0]).read_text().rpartition(")")[2].split()[1])
    (node,) = [node for node in nodes if node.all_processes["raylet"][0].process.pid == parent]
    cluster.remove_node(node, allow_graceful=False)

threading.Thread(target=remove_the_victims_node, daemon=True).start()
chunks = [(engine_work.Chunk("victim" if i == 1 else "c%d" % i, i, str(folder)), Needs()) for i in range(20)]
made = list(ray_engine(cluster.address)(engine_work.hang_once, chunks))
print(sorted(result for _, result in made) == list(range(20)), len(list(folder.glob("victim-*"))))
cluster.shutdown()
"""
    assert script(tmp_path, body).communicate(timeout=240)[0].splitlines()[-1] == "True 2"


def written_number(folder: Path, seconds: float = 180) -> int:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in folder.glob("victim-*"):
            if text := path.read_text():
                return int(text)
        time.sleep(0.1)
    pytest.fail("no chunk began")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_pieces_from_outside_are_known_to_ray_workers(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = short_scenario()
    with no_plugins():
        monkeypatch.chdir(EXAMPLE)  # the module lies there; the workers began elsewhere
        import_plugin(PACKAGE)
        monkeypatch.chdir(tmp_path)
        for name, engine in (("serial", serial), ("ray", ray_engine())):
            assert sweep(tmp_path / name, scenario_of(scenario), engine=engine).left == 0
    assert content(tmp_path / "ray") == content(tmp_path / "serial")
