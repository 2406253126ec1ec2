"""The plan of a run: its chunks, form, dtype and threads. It is fixed once and then followed.

In float32 the forms round differently, on CUDA widths do too, and L-BFGS amplifies that. So the plan is part of a result: under
the same plan a CPU run gives the same bits.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch

from leakscope.attacks.engine.footprint import Room
from leakscope.attacks.engine.form_choice import choose_form, form_of_one, narrow
from leakscope.attacks.engine.forms import FORMS
from leakscope.attacks.engine.state import Problem, Progress, Stop
from leakscope.core.devices import AUTO, find_device
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import trials
from leakscope.kernels.memory import available

DTYPES = {"float32": torch.float32, "float64": torch.float64}
SHARE_OF_FREE = 0.6
WIDEST = {"cpu": 128, "cuda": 4096}
FEW = 40  # evaluations of single trials, as many as choosing a form takes


@dataclass(frozen=True, slots=True)
class Execution:
    """The user's choices of how to run; None lets the engine choose and record its choice."""

    device: str = "cpu"
    dtype: str = "float32"
    form: str | None = None
    chunk: int | None = None
    memory: int | None = None
    tf32: bool = False
    directory: Path | None = None
    save_every: float = 30.0
    progress: Callable[[Progress], None] | None = None
    out_of_time: Callable[[int], bool] | None = None  # gets the number of evaluations before each; True ends the run

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"Execution.dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.form is not None and self.form not in FORMS:
            raise InputError(f"Execution.form must be one of {', '.join(FORMS)}, got {self.form!r}")
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"Execution.chunk must be at least 1, got {self.chunk}")
        if self.memory is not None and self.memory < 1:
            raise InputError(f"Execution.memory must be positive bytes, got {self.memory}")
        if self.device == AUTO or self.device.startswith("cuda"):
            object.__setattr__(self, "device", str(find_device(self.device)))

    def over(self) -> bool:
        """Return whether the time is over; for steps that are no evaluations, such as those of exact attacks."""
        return self.out_of_time is not None and self.out_of_time(0)


DEFAULT = Execution()
DEFAULT_STOP = Stop()


@dataclass(frozen=True, slots=True)
class Plan:
    """The fixed plan: chunk borders, form, dtype, device, threads, and the timings behind the choice of form."""

    form: str
    dtype: str
    device: str
    threads: int
    chunks: tuple[tuple[int, int], ...]
    tf32: bool = False
    measured: dict[str, float] = field(default_factory=dict)
    bytes: int = 0  # predicted for the widest chunk

    def write(self, directory: Path, stamp: str) -> None:
        """Write the plan atomically; the last one written counts."""
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / "plan.json.part"
        temporary.write_text(json.dumps({"stamp": stamp, **asdict(self)}, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, directory / "plan.json")

    @staticmethod
    def read(directory: Path, stamp: str, total: int) -> Plan | None:
        """Return the plan of a run of `total` trials started in this directory, or None; a damaged one is dropped."""
        path = directory / "plan.json"
        if not path.is_file():
            return None
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            same = saved.pop("stamp") == stamp
            saved["chunks"] = tuple((int(a), int(b)) for a, b in saved["chunks"])
            plan = Plan(**saved)
            ends = [0, *(last for _, last in plan.chunks)]
            if same and (plan.form not in FORMS or [*(first for first, _ in plan.chunks), total] != ends):
                raise ValueError("its chunks do not fit")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            warnings.warn(f"{path} is not a readable plan ({error}); a new one is made", stacklevel=2)
            return None
        if not same:
            raise InputError(f"{directory} holds another run; use an empty directory or the same settings and seeds")
        return plan


def make_plan(
    model: Model, problem: Problem, execution: Execution, evaluations: float, stop: Stop = DEFAULT_STOP
) -> Plan:
    """Return the plan for a problem on its device and in its dtype; `evaluations` per trial (at most) decide whether compiling pays."""
    total = trials(problem.unknowns)
    device = torch.device(execution.device)
    room = Room(model, problem, stop, execution.memory or int(available(device) * SHARE_OF_FREE))
    form = execution.form
    planned = total == 1 or (form and execution.chunk)  # one trial is always one chunk
    predicted = bool(execution.memory or not planned)
    if predicted:
        alone = "loop" if total == 1 and form is None else None
        form = None if alone and room.settle(alone) else room.settle(form)

    def width_in(form: str) -> int:
        most = min(execution.chunk or WIDEST[device.type], total)
        return min(most, room.need(form).fits(room.limit)) if predicted else most

    def measurable(form: str, lanes: int) -> bool:
        return not execution.memory or room.measurable(form, lanes, beside=total)

    rates: dict[str, float] = {}
    if form is None and total == 1:
        form = form_of_one(model, problem, evaluations, measurable)
    elif form is None and total * evaluations <= FEW:
        form = "native"
    elif form is None:
        width = width_in("im2col" if device.type == "cuda" and room.fits("im2col", 1) else "native")
        width = -(-total // -(-total // width))
        sample = narrow(problem, room.most_lanes("native", min(max(width, 4), 64)) if device.type == "cpu" else width)
        fits = partial(room.measurable, beside=total)
        form, rates = choose_form(model, sample, device, evaluations, live=width, fits=fits)
    width = -(-total // -(-total // width_in(form)))  # chunks of about equal size
    return Plan(
        form=form,
        dtype=execution.dtype,
        device=execution.device,
        threads=torch.get_num_threads(),
        chunks=tuple((first, min(first + width, total)) for first in range(0, total, width)),
        tf32=execution.tf32,
        measured={name: round(rate, 3) for name, rate in rates.items()},
        bytes=room.need(form).at(width) if predicted else 0,
    )
