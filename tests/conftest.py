"""The rule for tests on real data: skipped where there is none, except in CI, where that is a failure; and Ctrl-C for all."""

from __future__ import annotations

import html
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine draws examples says nothing about the code: a busy one failed tests by it.
settings.register_profile("leakscope", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leakscope")

# A suite that a shell started in the background ignores Ctrl-C, and so would every program it starts and sends one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Folders whose networks are so small that they run fastest on one thread.
ONE_THREAD = {"auditing", "clients", "defences", "docs", "federated", "inference", "learning", "models", "training"}


@pytest.fixture(autouse=True, scope="module")
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the modules of some folders on one thread."""
    if request.path.relative_to(Path(__file__).parent).parts[0] not in ONE_THREAD:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Return the directory of the real data sets, $LEAKSCOPE_DATA."""
    given = os.environ.get("LEAKSCOPE_DATA")
    if not given:
        if os.environ.get("CI") == "true":
            pytest.fail("LEAKSCOPE_DATA must be set in CI: the tests on real data may not be skipped there")
        pytest.skip("LEAKSCOPE_DATA is not set")
    if not Path(given).is_dir():
        pytest.fail(f"LEAKSCOPE_DATA points to {given}, which is not a directory")
    return Path(given)


@pytest.fixture
def same_text(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares the visible text of a page with golden/NAME.txt beside the test.

    LEAKSCOPE_GOLDEN=1 writes the file instead. Version, date and machine are left out.
    """

    def compare(name: str, source: str) -> None:
        body = re.sub(r"<(style|script)\b.*?</\1>", "", source.partition("<body>")[2], flags=re.DOTALL)
        lines = (html.unescape(line).strip() for line in re.sub(r"<[^>]*>", "\n", body).splitlines())
        text = "\n".join(re.sub(r"leakscope \d[\w.]*", "leakscope VERSION", line) for line in lines if line) + "\n"
        text = re.sub(r"\n(Date|Machine)\n.*", r"\n\1", text)
        path = request.path.parent / "golden" / f"{name}.txt"
        if os.environ.get("LEAKSCOPE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text("utf-8")

    return compare


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses `data_directory` as real_data, give the fixture to every test so marked, and browsers are slow."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.slow)
        if not isinstance(item, pytest.Function):
            continue
        if "data_directory" in item.fixturenames:
            item.add_marker(pytest.mark.real_data)
        elif item.get_closest_marker("real_data"):
            item.fixturenames.insert(0, "data_directory")
