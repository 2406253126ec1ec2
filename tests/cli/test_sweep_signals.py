"""A run that is interrupted, crowded or out of disk: real processes, real signals, a real small disk."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import TINY, events, leakscope, numbers_in, write
from leakscope.store import Run
from sweeper import content

pytestmark = pytest.mark.slow  # real processes that wait for each other: minutes in all

SLOWER = {"attack": {"name": "cpl", "iterations": 1}}  # 20 evaluations an iteration: time for a signal
MANY: dict[str, Any] = {**TINY, **SLOWER, "seeds": list(range(10))}  # 20 chunks of one trial
LONG: dict[str, Any] = {
    **{key: value for key, value in TINY.items() if key != "attack"},
    "attacks": [{"name": "cpl", "iterations": 1}, {"name": "ig", "iterations": 1_000_000}],
    "defences": [{"name": "gaussian_noise", "sigma": 0.1}],
    "knowledge": {"defence": False},
    "precision": {"form": "native", "chunk": 2},
}
LOCAL = "leakscope.sweep.engines.local"
PLAIN = "import sys; from leakscope.cli import main; main()"
# processes, short as the run is; the package has a function of the module's name, hence sys.modules
PROCESSES = f"import leakscope.sweep.engines, sys; sys.modules['{LOCAL}'].START_UP = -1.0; {PLAIN}"
PATIENCE = 120.0


def command(*words: object, code: str = PLAIN) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def started(*words: object, code: str = PLAIN, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Give a leakscope at work; whatever happens, it is gone afterwards."""
    process = subprocess.Popen(
        command(*words, code=code), stdout=-1, stderr=-1, text=True, env=environment(), **settings
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended with {process.returncode}: {process.communicate()[1]}")
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def logged(log: Path, event: str, **facts: object) -> bool:
    """Return whether the log has such an event; its last line may still be on its way."""
    if not log.exists():
        return False
    whole = log.read_text(encoding="utf-8").rpartition("\n")[0]
    output = [json.loads(line) for line in whole.splitlines()]
    return any(each["event"] == event and facts.items() <= each.items() for each in output)


def workers_of(driver: int) -> list[int]:
    """Return the processes that work, or worked, for a driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "engines.parcels" in words and re.search(rf"serve\(\d+, {driver}\)", words):
            found.append(int(path.parent.name))
    return found


def way_on(stderr: str) -> list[str]:
    """Return the words of the command that a stopped run says to go on with."""
    line = stderr.splitlines()[-1]
    words = shlex.split(line.partition("continue with: ")[2])
    assert words[:2] == ["leakscope", "run"], stderr
    return words[1:]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    where = tmp_path_factory.mktemp("undisturbed")
    assert leakscope("run", write(where / "s.yaml", MANY), "--out", where / "r", "-q", "--engine", "serial").code == 0
    return content(where / "r")


@pytest.mark.parametrize(
    ("engine", "sent"),
    [("serial", signal.SIGINT), ("local", signal.SIGINT), ("local", signal.SIGTERM), ("serial", signal.SIGHUP)],
)
def test_ctrl_c_finishes_the_chunk_in_hand_saves_and_says_how_to_go_on(
    tmp_path: Path, undisturbed: dict[str, Any], engine: str, sent: signal.Signals
) -> None:
    (tmp_path / "my files").mkdir()
    write(tmp_path / "my files/many trials.yaml", MANY)
    log = tmp_path / "log.jsonl"
    words = ["run", "my files/many trials.yaml", "--engine", engine, "--log-json", log]
    with started(*words, code=PROCESSES, cwd=tmp_path) as process:
        wait_for(lambda: logged(log, "landed"), process)
        if engine == "local" and (os.cpu_count() or 1) > 1:
            assert workers_of(process.pid)
            for worker in workers_of(process.pid):  # a service manager sends SIGTERM to all
                os.kill(worker, sent)
        process.send_signal(sent)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
    assert out == ""
    assert logged(log, "said")  # how to stop at once
    assert "Traceback" not in err
    assert not workers_of(process.pid)
    last = events(log)[-1]
    assert last["event"] == "ended"
    assert 0 < last["left"] < 20
    assert f"leakscope: stopped with {20 - last['left']} of 20 " in err
    directory = tmp_path / "runs/many trials"
    assert len(Run.open(directory).done()) == last["landed"] == 20 - last["left"]
    assert {key: undisturbed[key] for key in content(directory)} == content(directory)

    again = subprocess.run(
        command(*way_on(err)),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment(),
        timeout=PATIENCE,
    )
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("runs/many trials: ")
    assert numbers_in(again.stdout) == [20, last["left"]]  # trials, now
    assert content(directory) == undisturbed
    assert len(Run.open(directory).plans()) == 1
    assert not list(directory.rglob("*.part"))


def test_a_second_ctrl_c_stops_at_once_and_the_run_goes_on_later(tmp_path: Path) -> None:
    log, file = tmp_path / "log.jsonl", write(tmp_path / "long.yaml", LONG)
    with started("run", file, "--out", tmp_path / "r", "--log-json", log, "--engine", "serial") as process:
        wait_for(lambda: logged(log, "note", chunk="g2-c1"), process)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: logged(log, "said"), process)
        time.sleep(0.5)
        assert process.poll() is None  # it is still at its chunk, which would take hours
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
    assert "Traceback" not in err
    assert "stopped at once" in err
    assert events(log)[-1]["event"] == "failed"
    before = content(tmp_path / "r")
    assert len(before) == 2
    shorter = {**LONG, "attacks": [{"name": "cpl", "iterations": 1}, {"name": "ig", "iterations": 1}]}
    write(file, shorter)
    output = leakscope(*way_on(err))
    assert output.code == 0
    after = content(tmp_path / "r")
    assert len(after) == 4
    assert before.items() <= after.items()


def test_a_second_process_is_refused_in_one_line_while_the_first_goes_on(tmp_path: Path) -> None:
    log, file = tmp_path / "log.jsonl", write(tmp_path / "long.yaml", LONG)
    with started("run", file, "--out", tmp_path / "r", "--log-json", log, "--engine", "serial") as process:
        wait_for(lambda: logged(log, "landed"), process)
        output = leakscope("run", file, "--out", tmp_path / "r", "--engine", "serial")
        assert (output.code, output.out) == (2, "")
        (line,) = output.err.splitlines()
        assert line.startswith(f"leakscope: {tmp_path / 'r'} ")
        assert str(process.pid) in line
        assert leakscope("show", tmp_path / "r").code == 0  # reading is always allowed
        assert process.poll() is None


def test_a_driver_that_is_killed_leaves_no_workers(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    log, file = tmp_path / "log.jsonl", write(tmp_path / "s.yaml", MANY)
    with started("run", file, "--out", tmp_path / "r", "--log-json", log, code=PROCESSES) as process:
        wait_for(lambda: logged(log, "landed"), process)
        process.kill()
        process.wait()
        wait_for(lambda: not workers_of(process.pid))
    assert leakscope("run", file, "--out", tmp_path / "r", "-q", "--engine", "serial").code == 0
    assert content(tmp_path / "r") == undisturbed


def test_ctrl_c_typed_into_a_terminal_reaches_the_driver_alone(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """The terminal signals the whole foreground group; workers must not die of it with their chunks in hand."""
    log, file = tmp_path / "log.jsonl", write(tmp_path / "s.yaml", MANY)
    words = command("run", file, "--out", tmp_path / "r", "--log-json", log, code=PROCESSES)
    child, terminal = pty.fork()
    if child == 0:
        os.execve(words[0], words, {**environment(), "TERM": "xterm-256color"})
    seen, typed, end = b"", False, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:  # the other side is closed: it has ended
                break
        if not typed and logged(log, "landed"):
            typed = bool(os.write(terminal, b"\x03"))
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    text = seen.decode()
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "━" in text
    assert "worker lost" not in text
    assert "Traceback" not in text
    left = events(log)[-1]["left"]
    assert f"stopped with {20 - left} of 20 " in text
    assert content(tmp_path / "r").items() <= undisturbed.items()
    assert not workers_of(child)


# -- disk full


ON_A_SMALL_DISK = """
mount -t tmpfs -o size=3m none "$1" || exit 77
cd "$1" && shift
"$@" & process=$!
while kill -0 $process 2>/dev/null && ! ls r/tensors/*.safetensors >/dev/null 2>&1; do sleep 0.02; done
dd if=/dev/zero of=ballast bs=512 2>/dev/null
wait $process; echo "first $?"
rm ballast
"$@"; echo "second $?"
cp -r r "$KEEP"
"""


@pytest.mark.parametrize("engine", ["serial", "local"])
def test_a_full_disk_ends_with_one_line_and_a_run_that_goes_on(
    tmp_path: Path, undisturbed: dict[str, Any], engine: str
) -> None:
    disk, file = tmp_path / "disk", write(tmp_path / "s.yaml", MANY)
    disk.mkdir()
    words = command("run", file, "--out", "r", "--quiet", "--engine", engine, code=PROCESSES)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "sh", str(disk), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**environment(), "KEEP": str(tmp_path / "kept")},
        timeout=PATIENCE,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("mounts are forbidden here")
    assert done.stdout.splitlines() == ["first 2", "second 0"], done.stderr
    (line,) = done.stderr.splitlines()
    assert re.match(r"leakscope: .*full .*\br[:;]", line)
    assert content(tmp_path / "kept") == undisturbed
