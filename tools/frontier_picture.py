"""Draw docs/images/lora_frontier.svg: which updates of adapters give their sentences whole, by budget and tokens.

    python benchmarks/text.py --frontier docs/images/lora_frontier.json --first 1000 --batches 5
    python tools/frontier_picture.py [--check]

A cell is the mean share of whole sentences over batches; behind the stairs the budget (rank x modules) is at least the number of tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

IMAGES = Path("docs/images")
CELL, HIGH, LEFT, TOP = 64, 40, 72, 44


def text(x: float, y: float, words: str, *, colour: str = "#444", anchor: str = "middle") -> str:
    """Return words at a place."""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def draw(cells: list[dict[str, object]]) -> str:
    """Return the picture."""
    shares = {
        (int(str(cell["budget"])), int(str(cell["tokens"]))): list(map(float, cell["exact"]))  # type: ignore[call-overload]
        for cell in cells
    }
    budgets, tokens = (sorted({key[place] for key in shares}) for place in (0, 1))
    width, height = LEFT + CELL * len(budgets) + 16, TOP + HIGH * len(tokens) + 16
    number = {len(exact) for exact in shares.values()}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>Share of sentences that came back whole, by budget and tokens (n = {min(number)} batches a cell)</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(LEFT + CELL * len(budgets) / 2, 16, "budget: rank x modules"),
        text(8, TOP - 10, "tokens", anchor="start"),
    ]
    for column, budget in enumerate(budgets):
        lines.append(text(LEFT + CELL * (column + 0.5), TOP - 10, str(budget)))
    for row, size in enumerate(tokens):
        y = TOP + HIGH * row
        lines.append(text(LEFT - 10, y + HIGH / 2 + 5, str(size), anchor="end"))
        for column, budget in enumerate(budgets):
            share = sum(shares[budget, size]) / len(shares[budget, size])
            x, light = LEFT + CELL * column, round(97 - 55 * share)
            lines.append(
                f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{HIGH - 2}" fill="hsl(8, 70%, {light}%)"/>'
                + text(
                    x + CELL / 2 - 1, y + HIGH / 2 + 5, f"{100 * share:.0f} %", colour="#fff" if share > 0.5 else "#333"
                )
            )
        first = next((column for column, budget in enumerate(budgets) if budget >= size), len(budgets))
        x = LEFT + CELL * first - 1
        lines.append(f'<line x1="{x}" y1="{y - 1}" x2="{x}" y2="{y + HIGH - 1}" stroke="#000" stroke-width="2"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    """Write the picture, or say whether it is that of the numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    picture = draw(json.loads((IMAGES / "lora_frontier.json").read_text(encoding="utf-8")))
    path = IMAGES / "lora_frontier.svg"
    if asked.check:
        return int(path.read_text(encoding="utf-8") != picture)
    path.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
