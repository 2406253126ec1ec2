"""Seconds until a page of results stands in chromium, opened from disk.

python benchmarks/page.py RUN/report.html [--times 9]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    """Open the page several times in new tabs and print the median and the range."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("page", type=Path)
    parser.add_argument("--times", type=int, default=9)
    arguments = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        parser.error("no chromium on the PATH")
    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(arguments.times):
            tab = browser.new_page()
            began = time.perf_counter()
            tab.goto(arguments.page.resolve().as_uri(), wait_until="load")
            tab.evaluate(
                "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
            )  # it has been painted
            times.append(time.perf_counter() - began)
            elements = tab.evaluate("document.querySelectorAll('*').length")
            tab.close()
        browser.close()
    size = arguments.page.stat().st_size / 1e6
    print(
        f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f}, {len(times)} times), {elements:,} elements, {size:.1f} MB"
    )


if __name__ == "__main__":
    main()
