"""From stored runs to measured cells in the paper's words; nothing is attacked here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.attacks.simulate import LocalSteps, OneGradient
from leakscope.core.errors import InputError
from leakscope.core.record import Cell, SampleScore
from leakscope.core.types import Knowledge, LocalTraining
from leakscope.scenario.cell import read_settings
from leakscope.store import Landing
from leakscope.sweep.chunk import informed
from leakscope_papers.headlines import commands_of
from leakscope_papers.items import find_part, read_item
from leakscope_papers.pages.table import grid_of
from leakscope_papers.programs.rows import keeping
from leakscope_papers.records import recorded_file, write_recorded
from leakscope_papers.results import gathered_facts, recorded_result, result_of, results_in
from leakscope_papers.scales import parts_at, rows_at, run_directory, scenario_at, settings_at
from paper_runs import lay_run, records_of

CPU = {"device": "cpu"}
SCORE = SampleScore(
    sample=0, label=1, guess=1, mse=1e-3, psnr=30.0, ssim=0.9, label_correct=True, recovered=True, finite=True
)


def lay(
    item_name: str,
    scale: str,
    out: Path,
    part_name: str,
    iterations: tuple[int, ...] = (5, 60),
    facts: dict[str, str] = CPU,
) -> Path:
    """Lay the run of a part: in every cell one trial for each number of iterations, all of them converged."""
    item = read_item(item_name)
    part = find_part(item, part_name)
    return lay_run(item, part, scale, out, lambda cells: _landing(cells, iterations), facts)


def _landing(cells: list[Cell], iterations: tuple[int, ...]) -> Landing:
    records = records_of(cells, iterations, SCORE)
    trace = torch.tensor([1.0, 0.5, 0.5]).expand(len(records), 3).contiguous()
    at = torch.arange(3).expand(len(records), 3).to(torch.int32).contiguous()
    tensors = {"trace": trace, "trace_at": at}
    if all(dict(cell.settings)["attack"].get("film_end") for cell in cells):  # type: ignore[attr-defined]
        tensors |= {"image_mse": trace / 2, "snapshots_at": at.clone()}
    return Landing(chunk="g1-c1", plan=1, records=records, tensors=tensors, seconds=0.1)


def test_one_long_run_gives_every_cap(tmp_path: Path) -> None:
    lay("cpl-table-4", "small", tmp_path, "lfw_face")
    result = result_of(read_item("cpl-table-1"), "small", tmp_path)
    assert result is not None
    assert result.missing == ("cifar10", "cifar100")
    rates = {
        (cell.where["start"], cell.where["iterations_cap"]): cell.values["asr_convergence"].estimate.value
        for cell in result.cells
    }
    assert {start for start, _ in rates} == {
        "random",
        "patterned",
    }  # the other starts of table 4 are no part of table 1
    for start in ("random", "patterned"):
        assert [rates[start, cap] for cap in (10, 20, 30, 50, 100, 300)] == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]


def test_a_cell_stands_under_every_reading_that_speaks_of_it(tmp_path: Path) -> None:
    lay("cpl-table-8", "small", tmp_path, "lfw_face-gaussian")
    result = result_of(read_item("cpl-table-8"), "small", tmp_path)
    assert result is not None
    hundredth = [
        (cell.column.reading, cell.where["sigma"])
        for cell in result.cells
        if cell.column.attacker == "does not know" and cell.where["sigma"] != "none"
    ]
    assert ("deviation 10^-k", "10e-2") in hundredth
    assert ("deviation 10 x 10^-k", "10e-3") in hundredth
    assert ("variance 10^-k", "10e-4") in hundredth
    assert len(hundredth) == 6 * 3
    same = {c.cell for c in result.cells if (c.column.reading, c.where["sigma"]) in {("deviation 10^-k", "10e-2")}}
    other = {c.cell for c in result.cells if (c.column.reading, c.where["sigma"]) in {("variance 10^-k", "10e-4")}}
    assert same == other


def test_traces_are_read_where_an_item_asks_for_them(tmp_path: Path) -> None:
    for part in ("cross_entropy", "mse"):
        lay("mixing-table-1", "smoke", tmp_path, part)
    for name, there in (("mixing-figure-1", True), ("mixing-table-1", False)):
        result = result_of(read_item(name), "smoke", tmp_path)
        assert result is not None
        assert all(cell.values["steady_share"].has_number == there for cell in result.cells)
        assert all(cell.values["image_steady_share"].has_number == there for cell in result.cells)


def test_stand_in_data_is_neither_judged_nor_claimed_about(tmp_path: Path) -> None:
    lay("cpl-table-4", "smoke", tmp_path, "lfw_face", (1, 2))
    result = result_of(read_item("cpl-table-4"), "smoke", tmp_path)
    assert result is not None
    assert result.findings == ()
    assert not any(line.verdicts for line in result.comparison.lines)


def test_the_largest_scale_is_reported_unless_one_is_asked_for(tmp_path: Path) -> None:
    lay("cpl-table-4", "smoke", tmp_path, "lfw_face", (1, 2))
    lay("cpl-table-4", "small", tmp_path, "lfw_face")
    largest = results_in(tmp_path, names=["cpl-table-4"])
    assert [result.scale for result in largest] == ["small"]
    assert [result.scale for result in results_in(tmp_path, "smoke", ["cpl-table-4"])] == ["smoke"]
    assert {result.item.name for result in results_in(tmp_path)} == {
        "cpl-table-1", "cpl-table-4", "cpl-table-5", "cpl-figure-2", "cpl-figure-11",
    }  # fmt: skip
    with pytest.raises(InputError, match=r"scale full; .*run"):
        results_in(tmp_path, "full")


def test_who_knows_the_local_steps_simulates_them() -> None:
    item = read_item("cpl-table-9")
    (part,) = parts_at(item, "smoke")
    kinds = set()
    for cell in scenario_at(item, part, "smoke").cells():
        settings = read_settings(cell.settings)
        knowledge = Knowledge((1, 8, 8), 10, 1, local=LocalTraining(epochs=3, rate=0.1))
        attack = informed(settings.attack, settings, knowledge, [0])
        kinds.add((settings.knowledge.defence, type(attack.simulate)))  # type: ignore[attr-defined]
    assert kinds == {(False, OneGradient), (True, LocalSteps)}


def test_a_cap_is_not_felt_by_the_picture(tmp_path: Path) -> None:
    lay("cpl-table-4", "small", tmp_path, "lfw_face")
    result = result_of(read_item("cpl-table-1"), "small", tmp_path)
    assert result is not None
    for cell in result.cells:
        assert "asr_content" not in cell.values  # the picture at the cap was not kept
        assert "iterations_mean" in cell.values
    assert {finding.rule for finding in result.findings} == {"by convergence"}


def test_an_attack_without_a_threshold_has_no_convergence(tmp_path: Path) -> None:
    lay("cpl-table-2", "small", tmp_path, "mnist")
    result = result_of(read_item("cpl-table-2"), "small", tmp_path)
    assert result is not None
    there = {cell.where["attack"]: cell.values["asr_convergence"].has_number for cell in result.cells}
    assert there == {"cpl": True, "dlg": True, "ig": False}
    assert all(cell.values["asr_content"].has_number for cell in result.cells)


def test_the_runs_line_names_the_machine_of_every_part(tmp_path: Path) -> None:
    gpu = {"device": "H200", "torch": "2.11", "revision": "abc"}
    for part, facts in (("cross_entropy", gpu), ("mse", {"device": "cpu", "torch": "2.13", "revision": "abc"})):
        lay("mixing-table-1", "smoke", tmp_path, part, facts=facts)
    result = result_of(read_item("mixing-table-1"), "smoke", tmp_path)
    assert result is not None
    assert result.facts["device"].split("; ") == ["H200, 2.11 (cross_entropy)", "cpu, 2.13 (mse)"]
    assert f"({result.facts['device']}, abc)" in commands_of(result)


def test_facts_that_all_parts_share_are_said_once_and_those_that_differ_with_their_parts() -> None:
    first = {"device": "H200", "torch": "2.11", "python": "3.11", "command": "a"}
    assert gathered_facts({"a": first}) == first
    assert gathered_facts({"a": first, "b": first}) == first
    other = {"device": "H200", "torch": "2.13", "python": "3.11", "command": "b"}
    found = gathered_facts({"a": first, "b": other, "c": first, "d": {"python": "3.11"}})
    assert found.keys() == {"python", "device"}
    assert found["device"].split("; ") == ["H200, 2.11 (a, c)", "H200, 2.13 (b)", "not known (d)"]


def test_a_run_in_part_says_how_much_is_there_and_counts_the_item_s_own_cells(tmp_path: Path) -> None:
    lay("cpl-table-4", "small", tmp_path, "lfw_face", (5, 60))
    for name, cells in (("cpl-table-4", 9), ("cpl-table-1", 2)):  # table 1 reads two of the nine starts
        result = result_of(read_item(name), "small", tmp_path)
        assert result is not None
        assert result.partial == {"lfw_face": f"{2 * cells} of {20 * cells} trials"}
    lay("cpl-figure-7", "small", tmp_path, "camera", (5,))
    whole = result_of(read_item("cpl-figure-7"), "small", tmp_path)
    assert whole is not None
    assert whole.partial == {}


def test_rows_of_two_readings_with_one_key_stay_apart(tmp_path: Path) -> None:
    item = read_item("spn-table-11")
    for name, accuracy in (("cifar10", 1.0), ("cifar10_weights", 0.0)):
        part = find_part(item, name)
        settings = settings_at(item, part, "small")
        [(key, where)] = [row for row in rows_at(item, part, "small").items() if row[0] == "dp 0.5"]
        with keeping(run_directory(tmp_path, item, part, "small"), settings, CPU) as keep:
            assert not keep.done(key, where)
            keep.add(key, where, {"accuracy": [accuracy] * 20})
    result = result_of(item, "small", tmp_path)
    assert result is not None
    shown = {row.who: row.entries[0].value for row in grid_of(result).rows if not row.printed}
    gradients, weights = (reading.label for reading in item.readings[:2])
    assert shown == {gradients: "100 %", weights: "0 %"}


def test_a_run_is_recorded_and_everything_follows_from_its_rows(tmp_path: Path) -> None:
    lay("cpl-table-8", "small", tmp_path, "lfw_face-gaussian")
    result = result_of(read_item("cpl-table-8"), "small", tmp_path)
    assert result is not None
    assert result.recorded is not None
    write_recorded(result.recorded, recorded_file("cpl-table-8", "small", tmp_path))
    again = recorded_result(result.item, "small", tmp_path)
    assert again is not None
    assert again.comparison.counts == result.comparison.counts
    assert [finding.sentence for finding in again.findings] == [finding.sentence for finding in result.findings]
    assert grid_of(again) == grid_of(result)
    assert again.earlier == ()


def test_a_run_of_other_settings_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay("cpl-table-8", "small", tmp_path, "lfw_face-gaussian")
    monkeypatch.setattr("leakscope_papers.results.present_hashes", lambda *_: {"another": {}})
    result = result_of(read_item("cpl-table-8"), "small", tmp_path)
    assert result is not None
    assert result.cells == ()
    assert result.earlier
    assert all(row.earlier for row in result.earlier)
