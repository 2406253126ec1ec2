"""The values exchanged between packages; every tensor has a leading trial dimension T.

| value | holds | who may see it |
|---|---|---|
| Batch | private inputs in [0, 1] and labels | data, clients, metrics: never an attack |
| Observation | what the server saw | all |
| Knowledge | the threat model as data | attacks; stored with every result |
| Reconstruction | the attack's result | metrics |
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.fields import check_fields
from leakscope.core.model import Mode
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, scale, subtract, trials

Seeds: TypeAlias = Sequence[int]  # one per trial
IMAGE_RANK = 3  # dimensions of one image: C x H x W


@dataclass(frozen=True, slots=True)
class Batch:
    """A client's private data: `inputs` T x N x ... in [0, 1], `labels` T x N, `mask` T x N (False where N is padding).

    With `tokens` the inputs are sentences instead, T x N x L token numbers.

    `targets`, T x N x ..., are what a caller's own loss compares outputs with; then `labels` are not judged, and 0 without a class.
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor
    targets: Tensor | None = None
    tokens: bool = False

    __repr__ = short_repr

    @property
    def trials(self) -> int:
        """Return T."""
        return self.inputs.shape[0]

    @property
    def compared(self) -> Tensor:
        """Return what the client's loss compares outputs with: the targets of a caller's own loss, else the labels."""
        return self.labels if self.targets is None else self.targets

    @property
    def samples(self) -> int:
        """Return N, padding included."""
        return self.inputs.shape[1]


def make_batch(
    inputs: Tensor,
    labels: Tensor,
    *,
    classes: int,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    tokens: bool = False,
) -> Batch:
    """Return a checked Batch: shapes, values in [0, 1] (or token numbers), label range, at least one sample per trial."""
    if inputs.ndim < 3 or labels.shape != inputs.shape[:2]:
        raise InputError(
            f"a batch needs inputs T x N x ... and labels T x N, got {tuple(inputs.shape)} and {tuple(labels.shape)}"
        )
    mask = torch.ones(labels.shape, dtype=torch.bool, device=labels.device) if mask is None else mask.bool()
    if mask.shape != labels.shape:
        raise InputError(f"Batch.mask must be T x N = {tuple(labels.shape)}, got {tuple(mask.shape)}")
    if inputs.shape[0] == 0 or inputs.shape[1] == 0 or not bool(mask.any(dim=1).all()):
        raise InputError("empty batch: every trial needs at least one sample")
    if not inputs.is_floating_point():
        raise InputError(f"inputs must be floating numbers in [0, 1], got {inputs.dtype}; divide bytes by 255")
    if not bool(torch.isfinite(inputs).all()):
        raise InputError("inputs hold NaN or infinity; private inputs must be finite and in [0, 1]")
    low, high = float(inputs.min()), float(inputs.max())
    if not tokens and (low < -1e-6 or high > 1 + 1e-6):
        raise InputError(f"inputs must lie in the box [0, 1], got values in [{low:.4g}, {high:.4g}]")
    if labels.is_floating_point():
        raise InputError(f"labels must be whole numbers, got {labels.dtype}")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"labels must lie in 0..{classes - 1} for {classes} classes, got {int(labels.min())}..{int(labels.max())}"
        )
    if tokens and (low < 0 or not torch.equal(inputs, inputs.round())):
        raise InputError(f"token numbers are whole and not below 0, got values in [{low:.4g}, {high:.4g}]")
    return Batch(inputs, labels.to(torch.int64), mask, targets, tokens)


@dataclass(frozen=True, slots=True)
class Round:
    """One exchange: the weights and buffers the client received, and what it sent (a gradient, or weights after).

    `buffers_after` are its buffers after the round, if it sends them: as part of a state_dict, with batch norm's statistics.
    """

    before: Tree
    buffers: Tree
    sent: Tree
    buffers_after: Tree | None = None

    __repr__ = short_repr


class Shares(enum.Enum):
    """What the client sends: the gradient of one step, or its weights after local training."""

    GRADIENT = "gradient"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a real server sees of one client: one or several rounds, what was shared, the sample count."""

    rounds: tuple[Round, ...]
    shares: Shares
    samples: Tensor

    __repr__ = short_repr

    @property
    def trials(self) -> int:
        """Return T."""
        return trials(self.samples)


def direction(seen: Round, shares: Shares) -> Tree:
    """Return the update as a descent direction: the gradient itself, or `before - after`."""
    if shares is Shares.GRADIENT:
        return seen.sent
    return subtract({name: seen.before[name] for name in seen.sent}, seen.sent)


def to_gradient(observation: Observation, rate: float | Tensor) -> Observation:
    """Return a weight observation as the mean gradient it implies: `(w(t) - w_k(t+1)) / rate`.

    Exact for one step of plain SGD; after several pass `LocalTraining.length`. CPL's Algorithm 1, lines 5-6, has the opposite
    sign.
    """
    if observation.shares is Shares.GRADIENT:
        return observation
    if not bool((torch.as_tensor(rate) > 0).all()):
        raise InputError(f"a weight update converts to a gradient only with a learning rate above 0, got {rate}")

    def shrunk(update: Tree) -> Tree:
        if not isinstance(rate, Tensor):
            return scale(update, 1 / rate)
        return {name: value / rate.to(value).reshape(-1, *[1] * (value.ndim - 1)) for name, value in update.items()}

    rounds = tuple(replace(r, sent=shrunk(direction(r, observation.shares))) for r in observation.rounds)
    return replace(observation, rounds=rounds, shares=Shares.GRADIENT)


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """The local computation between download and upload: E epochs of batches of B at a rate.

    `batch_size=None` uses all examples at once; with one epoch of plain SGD that is FedSGD's step. `proximal` is the weight mu of
    FedProx's term mu/2 |w - w0|^2 (Li et al. 2020, arXiv:1812.06127, Eq. 2).
    """

    epochs: int = 1
    batch_size: int | None = None
    rate: float = 0.1
    optimiser: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    shuffle: bool = True
    proximal: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name, value in (("epochs", self.epochs), ("batch_size", 1 if self.batch_size is None else self.batch_size)):
            if value < 1:
                raise InputError(f"LocalTraining.{name} must be at least 1, got {value}")
        if not self.rate > 0:
            raise InputError(f"LocalTraining.rate must be above 0, got {self.rate}")
        if self.rate == math.inf:
            raise InputError("LocalTraining.rate must be finite, got inf")
        if self.optimiser not in ("sgd", "adam"):
            raise InputError(f"LocalTraining.optimiser must be 'sgd' or 'adam', got {self.optimiser!r}")
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < math.inf:
            raise InputError(
                f"LocalTraining needs momentum in [0, 1) and weight_decay in [0, inf), got {self.momentum}, {self.weight_decay}"
            )
        if not 0 <= self.proximal < math.inf:
            raise InputError(f"LocalTraining.proximal must be in [0, inf), got {self.proximal}")
        if self.optimiser == "adam" and self.momentum:
            raise InputError("LocalTraining.momentum belongs to 'sgd'; Adam has its own moments: leave it at 0")

    def steps(self, samples: int) -> int:
        """Return the number of local steps for a client of `samples` examples."""
        return self.epochs * -(-samples // (self.batch_size or samples))

    def length(self, samples: Sequence[int]) -> Tensor:
        """Return for clients of so many examples how many gradients their update sums up, times the rate.

        T steps of SGD at a rate have the length `rate T`, with momentum m `rate sum_k (1 - m^k) / (1 - m)` over k = 1 .. T.
        """
        steps, m = torch.tensor([self.steps(max(n, 1)) for n in samples], dtype=torch.float64), self.momentum
        return self.rate * (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the attacker knows; None means unknown. Facts about defences are values, never the defence object.

    `loss` is a name or the caller's own function, and `labels` are class numbers or what that function compares outputs with.
    `norm` is the mode of the client's batch norm as the attacker assumes it; None: that of the network it is given.
    `real` (T x N x L) says which places of sentences hold a token and which padding; None: all hold tokens.
    """

    input_shape: tuple[int, ...]
    classes: int
    samples: int
    present: Tensor | None = None
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy"
    scaling: Scaling = field(default_factory=Scaling)
    labels: Tensor | None = None
    local: LocalTraining | None = None
    order: Tensor | None = None
    public: Tensor | None = None
    mask: Tree | None = None
    largest: bool = False
    largest_each: bool = False
    bound: Tensor | None = None
    bound_each: bool = False
    bits: Tensor | None = None
    sigma: Tensor | None = None
    sigma_each: Tree | None = None
    policies: tuple[tuple[tuple[str, float], ...], ...] | None = None
    private_head: Tree | None = None
    norm: Mode | None = None
    real: Tensor | None = None

    __repr__ = short_repr


class Outcome(enum.IntEnum):
    """How a trial ended."""

    RUNNING = 0
    CONVERGED = 1
    EXHAUSTED = 2
    STALLED = 3
    DIVERGED = 4
    PROVED = 5  # every sample explains its part of the update to rounding


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """The result of an attack; images are in [0, 1], not clamped.

    `inputs` T x N x ..., `labels` T x N, `targets` T x N x ... under a caller's own loss
    (then `labels` mean nothing), `start` as `inputs`, `mismatch` T (the attack's final value), `iterations`,
    `evaluations` and `outcome` T, `trace` T x K (mismatch at iterations `trace_at` T x K, NaN and -1 if not reached), `snapshots`
    T x S x N x ... at iterations `snapshots_at` T x S (-1 if not reached). `seen` is `inputs` after the transformations that the
    attack attributes to the client, or None. `learned` are further scalar unknowns by name (T; SME's alpha) and final measures
    (DLFA's similarity loss); `courses` are those unknowns along `trace_at` (T x K). `proved`, T x N, are samples that the update
    certifies: exact attacks alone know them.
    """

    inputs: Tensor
    labels: Tensor
    start: Tensor
    mismatch: Tensor
    iterations: Tensor
    evaluations: Tensor
    outcome: Tensor
    trace: Tensor
    trace_at: Tensor
    snapshots: Tensor
    snapshots_at: Tensor
    seen: Tensor | None = None
    targets: Tensor | None = None
    learned: Tree = field(default_factory=dict)
    courses: Tree = field(default_factory=dict)
    proved: Tensor | None = None

    __repr__ = short_repr

    @property
    def trials(self) -> int:
        """Return T."""
        return self.inputs.shape[0]
