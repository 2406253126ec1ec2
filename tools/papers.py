"""Write docs/papers.md, the table of papers in README.md and the tables of rows in docs/how-to/papers.md from the recorded results.

python tools/papers.py            # write them
python tools/papers.py --check    # exit 1 if they are not what would be written
LEAKSCOPE_DATA=... python tools/papers.py --hours    # first estimate anew how long every part takes at full scale
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from leakscope_papers.hours import write_hours
from leakscope_papers.pages.rows import rows_table
from leakscope_papers.pages.standing import standing_page, summary_table

ROOT = Path(__file__).parents[1]
PAGE, README, HOW_TO = ROOT / "docs" / "papers.md", ROOT / "README.md", ROOT / "docs" / "how-to" / "papers.md"
BEGIN, END = "<!-- tools/papers.py -->\n", "<!-- end -->\n"
ROWS = re.compile(r"(<!-- rows (\S+) (\S+) ([^>]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)  # item, part, measures


def pages() -> dict[Path, str]:
    """Return file -> text as it should be."""
    text = README.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"README.md must hold {BEGIN.strip()} and {END.strip()}, a line each")
    how_to = ROWS.sub(
        lambda found: found[1] + rows_table(found[2], found[3], found[4].split()), HOW_TO.read_text("utf-8")
    )
    return {
        PAGE: standing_page(),
        HOW_TO: how_to,
        README: f"{before}{BEGIN}{summary_table('src/leakscope_papers')}\n{END}{after}",
    }


def main() -> None:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--hours", action="store_true")
    asked = parser.parse_args()
    check = asked.check
    if asked.hours:
        write_hours()
    stale = {path: text for path, text in pages().items() if not path.is_file() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if check:
            sys.stderr.write(
                f"{path.relative_to(ROOT)} differs from the recorded results; run: python tools/papers.py\n"
            )
        else:
            path.write_text(text, "utf-8")
    sys.exit(check and bool(stale))


if __name__ == "__main__":
    main()
