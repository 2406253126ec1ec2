"""`leakscope.scan(model)`: is the model that a client was sent a trap? Tests of the weights, of a sample, and against the last round.

A scan finds known manipulations by the traces they leave. A server that hides its traces may pass, so a line that ran says "usual", never
safe, and what did not run is a line "not tested".
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakscope.auditing.static.inspection import run_once
from leakscope.auditing.target import Target, check_module
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.pages import notebook_table
from leakscope.core.registry import lookup
from leakscope.scanning import biases, copied_inputs, dense_rows
from leakscope.scanning.findings import ABOUT, Reading, ScanLine, Test, Verdict
from leakscope.scanning.own_batch import read_batch, relative_loss, run_network
from leakscope.scanning.reference import BATCHES, judge_reading
from leakscope.scanning.rounds import check_same, jump, weights_hash
from leakscope.scanning.units import peeling_recall, unit_degrees
from leakscope.sweep.engines.contract import torch_threads

OF_WEIGHTS = {
    Test.EQUAL_ROWS: dense_rows.equal_rows,
    Test.MIRRORED_ROWS: dense_rows.mirrored_rows,
    Test.TRANSMIT_SNR: copied_inputs.transmit_snr,
    Test.TRANSMITTING: copied_inputs.transmitting_filters,
    Test.IDENTITY: copied_inputs.identity_weights,
    Test.FEW_HOT: copied_inputs.few_hot_rows,
    Test.LARGEST: copied_inputs.largest_weight,
    Test.SET_BIASES: biases.set_biases,
    Test.LARGE_BIASES: biases.large_biases,
}
OF_LABELS = (Test.D_SNR, Test.CLASS_D_SNR, Test.LOSS, Test.PEELING)
OF_ROUNDS = (Test.JUMP, Test.LOSS_JUMP)
FEWEST = min(BATCHES)


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The lines of a scan, one per test; `batch` is the number of examples that the tests on data used (0: none)."""

    name: str
    lines: tuple[ScanLine, ...]
    batch: int
    seconds: float

    def __repr__(self) -> str:
        return "\n  ".join([self.head, *(f"{line.verdict}: {line}" for line in self.having(Verdict.SUSPECT))])

    def _repr_html_(self) -> str:
        rows = [[line.verdict, str(line), ABOUT[line.test].value] for line in self.lines]
        return notebook_table(self.head, ("", "test", "value"), rows)

    def __getitem__(self, test: str) -> ScanLine:
        """Return the line of a test, by its name."""
        return lookup({line.test.value: line for line in self.lines}, str(test), "test of a scan")

    def having(self, *verdicts: Verdict) -> tuple[ScanLine, ...]:
        """Return the lines with one of these verdicts."""
        return tuple(line for line in self.lines if line.verdict in verdicts)

    @property
    def suspected(self) -> bool:
        """Return whether any test found what honest models do not have."""
        return bool(self.having(Verdict.SUSPECT))

    @property
    def ran(self) -> tuple[ScanLine, ...]:
        """Return the lines of the tests that ran."""
        return self.having(Verdict.USUAL, Verdict.LEAKS, Verdict.SUSPECT)

    @property
    def passed(self) -> bool:
        """Return whether tests ran and none suspects a trap."""
        return bool(self.ran) and not self.suspected

    @property
    def hash(self) -> str:
        """Return the SHA-256 of the weights, to compare with other clients."""
        return str(self[Test.HASH].value)

    @property
    def head(self) -> str:
        """Return the result in one line."""
        ran, suspects = self.ran, self.having(Verdict.SUSPECT)
        skipped = ", ".join(line.test for line in self.having(Verdict.NOT_TESTED))
        words = f"trap suspected by {len(suspects)}" if suspects else "no trap suspected by any"
        words = f"{words} of {len(ran)} tests that ran" if ran else "no test could run, so a trap cannot be excluded"
        return f"{self.name}: {words}; not tested: {skipped}"

    def __str__(self) -> str:
        return "\n".join([self.head, *(f"  {line.verdict:<10}  {line}" for line in self.lines)])

    def to_dict(self) -> dict[str, object]:
        """Return plain data, for JSON."""
        lines = [line.to_dict() for line in self.lines]
        facts = {
            "model": self.name,
            "suspected": self.suspected,
            "passed": self.passed,
            "hash": self.hash,
            "batch": self.batch,
        }
        return {**facts, "seconds": self.seconds, "lines": lines}


def scan(
    target: Target | nn.Module,
    *,
    previous: nn.Module | Mapping[str, Tensor] | None = None,
    hashes: Sequence[str] = (),
) -> Scan:
    """Return what tests find in a received model: its weights, and its behaviour on a sample of the client's own data.

    `target` is the model, or a `Target` whose `inputs` and `labels` are the sample: 16 examples or more, of which 16 or 64 are used.
    `previous` is the model of the last round or its state_dict. `hashes` are those that other clients of this round have
    (`Scan.hash`). The model is not changed.
    """
    began = time.monotonic()
    target = target if isinstance(target, Target) else Target(model=target)
    check_module(target.model)
    received = target.model.state_dict()
    last = _weights(previous)
    if last is not None:
        check_same(received, last)
    lines = [judge_reading(test, read(target.model)) for test, read in OF_WEIGHTS.items()]
    lines.append(judge_reading(Test.DEAD, copied_inputs.dead_branches(target.model, last)))
    sample, why = _sample(target)
    with torch_threads(_faster_threads(sample)):
        lines += _data_lines(sample, why)
        lines += _round_lines(sample, why, received, last)
    lines.append(_hash_line(weights_hash(received), hashes))
    lines.append(ScanLine(Test.TRAINED_DECODER, Verdict.NOT_TESTED))
    batch = 0 if sample.inputs is None else len(sample.inputs)
    return Scan(type(target.model).__name__, tuple(lines), batch, time.monotonic() - began)


def _weights(previous: nn.Module | Mapping[str, Tensor] | None) -> Mapping[str, Tensor] | None:
    if previous is None or isinstance(previous, Mapping):
        return previous
    if not isinstance(previous, nn.Module):
        raise InputError(f"scan(previous=...) takes an nn.Module or its state_dict, got {type(previous).__name__}")
    return previous.state_dict()


def _sample(target: Target) -> tuple[Target, str]:
    """Return the target with the batch that the tests use, and why there is none."""
    inputs, labels = target.inputs, target.labels
    if inputs is None:
        return target, "no sample of data was given"
    if not isinstance(inputs, Tensor) or inputs.ndim < 2:
        raise InputError("inputs must be a tensor of M examples, M x ...")
    if labels is not None and len(labels) != len(inputs):
        raise InputError(f"labels must be as many as the inputs, {len(inputs)}, got {len(labels)}")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise InputError("inputs hold NaN or infinity")
    if not len(inputs):
        raise InputError("inputs hold no example")
    with torch.no_grad():
        run_network(copy.deepcopy(target.model).eval(), inputs[:1])
    size = next((size for size in BATCHES if size <= len(inputs)), None)
    if size is None:
        return replace(target, inputs=None), f"{len(inputs)} examples are too few, {FEWEST} are needed"
    order = random.permutation(random.fold(random.key(0), "scan"), len(inputs))[:size]
    return replace(target, inputs=inputs[order], labels=None if labels is None else labels[order]), ""


def _faster_threads(sample: Target) -> int:
    """Return 1 or all torch threads, whichever runs the network faster: on a busy machine threads wait for each other."""
    every = torch.get_num_threads()
    if sample.inputs is None or every == 1 or any(value.is_cuda for value in sample.model.parameters()):
        return every
    network, inputs = copy.deepcopy(sample.model).eval(), sample.inputs[:1]  # gradients are of single examples

    def seconds(threads: int) -> float:
        with torch_threads(threads), torch.no_grad():
            began = time.perf_counter()
            run_network(network, inputs)
            return time.perf_counter() - began

    seconds(every)  # the first run prepares the kernels
    return min((1, every), key=lambda threads: max(seconds(threads), seconds(threads)))


def _data_lines(sample: Target, why: str) -> list[ScanLine]:
    """Return the lines of the tests on the sample."""
    if sample.inputs is None:
        return [ScanLine(test, Verdict.NOT_TESTED, note=why) for test in (*OF_LABELS, Test.DEGREES)]
    batch, labels = len(sample.inputs), sample.labels
    structure, problem = run_once(sample.model, tuple(sample.inputs.shape[1:]), sample.inputs)
    if structure is None:
        degrees = ScanLine(Test.DEGREES, Verdict.NOT_TESTED, note=problem)
    else:
        degrees = judge_reading(Test.DEGREES, unit_degrees(sample.model, sample.inputs, structure), batch)
    if labels is None:
        return [*(ScanLine(test, Verdict.NOT_TESTED, note="no labels were given") for test in OF_LABELS), degrees]
    own = read_batch(sample.model, sample.inputs, labels, sample.loss)
    return [
        judge_reading(Test.D_SNR, own.d_snr(), batch),
        judge_reading(Test.CLASS_D_SNR, own.class_d_snr(), batch),
        judge_reading(Test.LOSS, Reading(relative_loss(sample.model, sample.inputs, labels, sample.loss))),
        degrees,
        ScanLine(Test.PEELING, Verdict.NOT_TESTED, note=problem)
        if structure is None
        else ScanLine(Test.PEELING, Verdict.ABSENT)
        if structure.entry is None
        else _peeling_line(sample, batch),
    ]


def _peeling_line(sample: Target, batch: int) -> ScanLine:
    """Return the line of what peeling reads back: suspect if it is more than from fresh weights, by more than honest training adds."""
    recalls = peeling_recall(sample)
    if recalls is None:
        return ScanLine(Test.PEELING, Verdict.ABSENT)
    received, fresh = recalls
    if fresh is None:
        note = "fresh weights cannot be drawn to compare"
        return ScanLine(Test.PEELING, Verdict.LEAKS if received else Verdict.NOT_TESTED, received, note=note)
    line = judge_reading(Test.PEELING, Reading(max(0.0, received - fresh)), batch)
    leaks = received > 0 and line.verdict is Verdict.USUAL
    numbers = {"received": received, "fresh": fresh}
    note = f"{received:.0%} of {batch} examples are read back, {fresh:.0%} with fresh weights"
    return replace(line, verdict=Verdict.LEAKS if leaks else line.verdict, numbers=numbers, note=note)


def _round_lines(
    sample: Target, why: str, received: Mapping[str, Tensor], last: Mapping[str, Tensor] | None
) -> list[ScanLine]:
    """Return the lines of the tests against the last round."""
    if last is None:
        return [ScanLine(test, Verdict.NOT_TESTED, note="the last round's model was not given") for test in OF_ROUNDS]
    parameters = [name for name, _ in sample.model.named_parameters()]
    change = judge_reading(Test.JUMP, jump(received, last, parameters))
    if sample.inputs is None or sample.labels is None:
        return [change, ScanLine(Test.LOSS_JUMP, Verdict.NOT_TESTED, note=why or "no labels were given")]
    before = copy.deepcopy(sample.model)
    before.load_state_dict(dict(last))
    given = (sample.inputs, sample.labels, sample.loss)
    losses = [relative_loss(module, *given) for module in (sample.model, before)]
    rise = None if losses[0] is None or losses[1] is None else losses[0] - losses[1]
    return [change, judge_reading(Test.LOSS_JUMP, Reading(rise))]


def _hash_line(own: str, others: Sequence[str]) -> ScanLine:
    if not others:
        return ScanLine(Test.HASH, Verdict.SHOWN, own, note="no hash of another client was given")
    others = [each.strip().lower() for each in others]
    for each in others:
        if not re.fullmatch("[0-9a-f]{64}", each):
            raise InputError(f"hashes must be 64 hexadecimal digits, as the scan prints them, got {each[:80]!r}")
    differing = [each for each in others if each != own]
    verdict = Verdict.SUSPECT if differing else Verdict.USUAL
    return ScanLine(Test.HASH, verdict, own, note=f"{len(differing)} of {len(others)} other clients got another model")
