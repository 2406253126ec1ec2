"""The run directory: records, reconstructions, plans; written by one, read by many."""

from leakscope.store.disk import DiskFullError
from leakscope.store.export import EXPORTS, export
from leakscope.store.landing import Landing
from leakscope.store.run import Run
from leakscope.store.writer import Writer

__all__ = ["EXPORTS", "DiskFullError", "Landing", "Run", "Writer", "export"]
