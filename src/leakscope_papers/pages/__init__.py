"""Pages of paper items: published beside measured."""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"  # also of the page of characteristics
