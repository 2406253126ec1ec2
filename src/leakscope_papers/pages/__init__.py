"""Pages of paper items: published beside measured."""
