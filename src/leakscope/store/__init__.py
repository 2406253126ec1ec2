"""The run directory (records, reconstructions, plans; one writer, many readers) and captured updates."""

from leakscope.core.record import Cell as Cell, Record as Record, SampleScore as SampleScore
from leakscope.store.captures import Capture as Capture, read_captures as read_captures, write_capture as write_capture
from leakscope.store.disk import DiskFullError as DiskFullError
from leakscope.store.export import EXPORTS as EXPORTS, export as export
from leakscope.store.tensor_files import Landing as Landing
from leakscope.store.recorder import Recorder as Recorder, Recording as Recording
from leakscope.store.run import Run as Run
from leakscope.store.writer import Writer as Writer
