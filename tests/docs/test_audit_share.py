"""The benchmark behind the sufficient share stores each verdict as it comes, and a killed run goes on after the last one."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CASES = ["vit", "mlp, 16 examples"]


@pytest.fixture
def benchmark() -> ModuleType:
    path = ROOT / "benchmarks" / "audit_share.py"
    if not path.exists():
        pytest.skip("benchmarks are not part of the package")
    spec = importlib.util.spec_from_file_location("audit_share", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Played:
    """Verdicts that depend on case and share; the run dies before the verdict number `dies`."""

    def __init__(self, dies: int = 10**6, grade: str = "B") -> None:
        self.dies, self.grade = dies, grade
        self.computed: list[tuple[str, Fraction]] = []

    def __call__(self, name: str, clients: int, device: str, shares: Sequence[Fraction]) -> Iterator[tuple[str, int]]:
        del device
        for share in shares:
            if len(self.computed) == self.dies:
                raise KeyboardInterrupt
            self.computed.append((name, share))
            yield self.grade, round(1000 * clients + 64 * share)


def play(benchmark: ModuleType, played: Played, *arguments: str) -> None:
    benchmark.verdicts = played
    benchmark.main([*arguments, "--only", *CASES])


@pytest.mark.parametrize("dies", [0, 1, 3, 7, 9, 13])
@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_run_goes_on_after_its_last_verdict(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], dies: int, torn: bool
) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    play(benchmark, Played(), "4", "--out", str(whole))
    wanted = capsys.readouterr().out
    first, second = Played(dies), Played()
    with pytest.raises(KeyboardInterrupt):
        play(benchmark, first, "4", "--out", str(parts))
    if torn:
        with parts.open("a") as file:
            file.write('{"case": "vi')
    capsys.readouterr()
    play(benchmark, second, "4", "--out", str(parts))
    assert capsys.readouterr().out == wanted
    assert [*first.computed, *second.computed] == [(name, share) for name in CASES for share in benchmark.SHARES]
    assert benchmark.read([parts]) == benchmark.read([whole])


def test_verdicts_of_other_numbers_of_clients_are_not_taken(benchmark: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    play(benchmark, Played(), "4", "--out", str(out))
    again = Played()
    play(benchmark, again, "8", "--out", str(out))
    assert len(again.computed) == len(CASES) * len(benchmark.SHARES)
    assert {recovered // 1000 for _, recovered in benchmark.read([out], 8)["vit"]} == {8}


def test_a_case_that_is_left_stays_left(benchmark: ModuleType, tmp_path: Path) -> None:
    arguments = ("4", "--good-only", "--out", str(tmp_path / "out.jsonl"))
    first, second = Played(grade="F"), Played(grade="F")
    play(benchmark, first, *arguments)
    play(benchmark, second, *arguments)
    assert first.computed == [(name, benchmark.SHARES[0]) for name in CASES]
    assert second.computed == []
