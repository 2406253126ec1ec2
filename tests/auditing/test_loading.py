"""The first use of torch.func imports for seconds: an audit does so before its time begins, and says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from leakscope.auditing import Target, capture_audit, target_audit

events, began = [], []

def heard(event):
    events.append((event.phase, "torch._dynamo" in sys.modules, time.monotonic()))

def refused(*given):
    budget = next(each for each in given if hasattr(each, "began")) if {simulated} else given[1].budget
    began.append(budget.began)
    raise target_audit.UntestedError("enough")

target = Target(model=nn.Linear(4, 2), inputs=torch.rand(8, 4), labels=torch.arange(8) % 2, input_shape=None)
if {simulated}:
    target_audit.affordable_clients = refused
    target_audit.audit_target(target, minutes=0.1, progress=heard)
else:
    capture_audit._gathered = refused
    capture_audit.audit_captures(Path("."), target, minutes=0.1, progress=heard)
(first, loaded, at), (_, then, after) = events[:2]
print(first, loaded, then, at < began[0] <= after, began[0] - at > after - began[0])
"""


@pytest.mark.parametrize("simulated", [True, False])
def test_the_time_begins_after_torch_func_was_loaded(simulated: bool) -> None:
    code = CODE.replace("{simulated}", str(simulated))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split() == ["torch.func", "False", "True", "True", "True"], done.stderr
