"""The files that docs/how-to/policies.md shows are read without a complaint."""

from __future__ import annotations

import re
from pathlib import Path

from leakscope.scenario import read_scenario
from leakscope.search.settings import read_search

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "policies.md"


def test_the_scenario_and_the_search_of_the_guide_are_valid(tmp_path: Path) -> None:
    scenario, search = re.findall(
        r"^```yaml\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for name, text in (("scenario", scenario), ("search", search)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    assert read_scenario(tmp_path / "scenario.yaml").cell_count == 12
    said = read_search(tmp_path / "search.yaml")
    assert (said.candidates, said.threshold) == (200, None)
