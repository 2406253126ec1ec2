"""Which device work runs on: named by the user, or where the weights lie."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import to

AUTO = "auto"


def find_device(name: str | torch.device | None, values: Iterable[Tensor] = ()) -> torch.device:
    """Return a device of this machine: the one named, CUDA where there is one for 'auto', else where the values lie.

    >>> find_device(None), find_device("cpu")
    (device(type='cpu'), device(type='cpu'))
    """
    if name is None:
        places = sorted({str(value.device) for value in values})
        if len(places) > 1:
            raise InputError(f"the model is on several devices ({', '.join(places)}): move it to one, or name a device")
        return torch.device(places[0] if places else "cpu")
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {str(name)!r}")
    if device.type == "cuda":
        number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= number:
            devices = f"only {', '.join(f'cuda:{i}' for i in range(number))}" if number else "no CUDA device"
            raise InputError(f"device {str(name)!r}: PyTorch finds {devices} on this machine; cpu runs everywhere")
    return device


def runs_on(model: Model, device: torch.device, inputs: Tensor) -> Model | str:
    """Return the model on a device, or why it cannot run these inputs there (such as a constant that is no buffer)."""
    moved = model if device.type == "cpu" else to(model, device=device)
    try:
        with torch.no_grad():
            moved.apply(moved.parameters, moved.buffers, inputs.to(device), random.key(0, device=device))
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return moved
