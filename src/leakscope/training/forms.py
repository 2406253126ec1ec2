"""How many clients are trained at once: the fastest form on this machine, measured once and then kept."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from leakscope.federated import Form, State, groups_of, train_groups, who_answers
from leakscope.kernels.bands import Banded
from leakscope.kernels.heap import keep_freed
from leakscope.kernels.im2col import Im2col
from leakscope.kernels.per_client import client_by_client
from leakscope.kernels.windows import Windowed
from leakscope.models import Functional
from leakscope.training.objects import TrainingObjects


def _bands() -> Banded:
    keep_freed()  # a step's large tensors come and go many times a second
    return Banded()


def _windows() -> Windowed:
    keep_freed()
    return Windowed()


FORMS: dict[str, Form] = {
    "native": Form(nullcontext, traced=True),
    "by_client": Form(client_by_client),
    "split": Form(partial(client_by_client, channels_last=True), split=True),
    "bands": Form(_bands, split=True),
    "windows": Form(_windows, split=True, traced=True),
    "im2col": Form(Im2col, traced=True),
}
MEASURED = ("native", "by_client", "split", "bands", "windows")  # on CPU im2col lost every comparison at training
MOST_CLIENTS = 100  # with fewer the cost of a step that does not depend on them decides
TIMES = 3
NEAR = 1.5  # a form is measured a third time where its best is within this factor of the best of all


def choose_form(world: TrainingObjects, state: State, say: Callable[[str], None] = lambda _: None) -> str:
    """Return the form that trains a few of the clients fastest; 'native' where there is no convolution to do otherwise."""
    if not _has_convolutions(world):
        return "native"
    if next(iter(state.weights.values())).is_cuda:
        return "im2col"  # grouped convolutions are slow there, and client by client leaves the card idle
    answered = who_answers(world.federation, state.rounds, world.holdings.clients) or (0,)
    counts, together = world.holdings.counts, world.federation.together
    some = sorted(answered, key=lambda client: int(counts[client]))[:MOST_CLIENTS]
    client = world.federation.client
    short = client if client.local is None else replace(client, local=replace(client.local, epochs=1))
    federation = replace(world.federation, client=short)
    seconds: dict[str, float] = {}
    threads = torch.get_num_threads()

    def measure(form: Form) -> float:
        groups = list(groups_of(some, counts, together, threads if form.split else 1))
        began = time.perf_counter()
        answers = train_groups(
            federation, world.trained, world.holdings, state, groups, form=replace(form, traced=False)
        )
        deque(answers, maxlen=0)  # one after the other: they need not lie in memory together
        return time.perf_counter() - began

    for turn in range(TIMES):
        for name in MEASURED:
            if turn < 2 or seconds[name] <= NEAR * min(seconds.values()):
                seconds[name] = min(seconds.get(name, math.inf), measure(FORMS[name]))
    chosen = min(seconds, key=lambda name: seconds[name])
    timings = ", ".join(f"{name} {value * 1e3:.0f} ms" for name, value in seconds.items())
    say(f"convolutions {chosen} ({timings} for one epoch of {len(some)} clients, {threads} threads)")
    return chosen


def _has_convolutions(world: TrainingObjects) -> bool:
    apply = world.trained.apply
    return not isinstance(apply, Functional) or any(isinstance(layer, nn.Conv2d) for layer in apply.module.modules())
