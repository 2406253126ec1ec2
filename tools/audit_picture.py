"""Make docs/images/audit.png: the top of a real audit page, in the light theme, as a browser shows it.

    python tools/audit_picture.py [--page audit/index.html] [--out docs/images/audit.png]

Without `--page` it first runs the audit of docs/start/first-audit.md, which takes four minutes. Needs a chromium on the PATH.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

AUDITED = "model: mlp\ndata: fashion_mnist\n"
SIZE = {"width": 1200, "height": 600}
COLOURS = 64


def audit_page(directory: Path) -> Path:
    """Return the page of the first audit, run into a directory."""
    (directory / "audit.yaml").write_text(AUDITED, encoding="utf-8")
    command = [sys.executable, "-m", "leakscope", "audit", str(directory / "audit.yaml"), "--out", str(directory)]
    subprocess.run(command, check=True)
    return directory / "index.html"


def photograph(page: Path) -> Image.Image:
    """Return the top of a page in few colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport=SIZE, color_scheme="light")
        shown.goto(page.resolve().as_uri())
        shot = shown.screenshot()
        browser.close()
    return Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


def main() -> None:
    """Write the picture and print its size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", type=Path, help="an audit page that is there already")
    parser.add_argument("--out", type=Path, default=Path("docs/images/audit.png"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        photograph(given.page or audit_page(Path(directory))).save(given.out, optimize=True)
    print(f"{given.out}: {given.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
