"""What an attacker can infer from one captured update: samples, labels, local steps, learning rate.

With W the weights of a dense layer, a_i its inputs and d_i the gradients at its outputs, one gradient over N examples is `dW =
1/N sum_i d_i a_i^T`, so

    rank(dW) <= min(N, rows, columns),

and for the layer that reads the input the same holds after any number of local steps of SGD, because its a_i are the inputs. If
the rank is well below both sides it is N (unless examples are linearly dependent). A full rank is uninformative: too many
examples, noise, or an optimiser that scales each weight. Full rank is relative to the rows and columns that changed (inactive
ReLU units do not).

For the last layer under cross entropy, `o = W h + b`, S steps at rate r change the bias by

    b_before - b_after = r S (p - y),   p, y the mean prediction and the label shares,

so a class that did not occur has `r S = (b_before - b_after)_c / p_c`: the largest of these quotients is r S if any class is
missing, else a lower bound. Then `y = p - (b_before - b_after) / (r S)`. (Zhao et al. 2020 read single labels this way; Yin et
al. 2021 and Wainakh et al. 2022 batches.) If batch norm's counter is sent, it gives the number of steps. One step of Adam moves
every weight by its rate. Estimates are exact, approximate, or unknown with a reason; docs/explanation/inference.md has the measured errors.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY, Tree
from leakscope.core.types import Shares

DUMMIES = 256
RANK_TOLERANCE = 1e-4  # of the largest singular value; below, float32 rounding dominates
GAP = 0.03  # the first singular value left out, over the last that counts
ROOM = 0.85  # of the full rank; units active for the same few examples keep it slightly lower
ADAM_SPREAD = 0.02
SPREAD = 0.1  # mean distance of predictions from their mean (half the sum over classes); fresh networks have 0.03
TRAINED_NETWORK = (
    "the network already distinguishes inputs, so its mean prediction on others says little about the client's"
)
COUNTER = "num_batches_tracked"
UNMOVED = "the last bias did not move, or not by a number"
SAME = "every weight moved by the same amount: signs or one step of Adam, which hide the size of the gradient"


class Sure(enum.Enum):
    """The reliability of an estimate."""

    EXACT = "exact"
    ABOUT = "about"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Guess:
    """One estimate: a number (None if unknown), its reliability, and the reason."""

    value: float | None
    sure: Sure
    why: str

    def __str__(self) -> str:
        text = f"{self.sure.value} {self.value:.4g}" if self.value is not None else self.sure.value
        return f"{text} ({self.why})"


@dataclass(frozen=True, slots=True, eq=False)
class Inferred:
    """The estimates from one update: number of examples, label shares (C, or None), local steps, rate, and rate times steps."""

    samples: Guess
    labels: Tensor | None
    labels_why: str
    steps: Guess
    rate: Guess
    rate_times_steps: Guess

    __repr__ = short_repr

    def counts(self, samples: int) -> Tensor | None:
        """Return the number of examples of each class among `samples`, rounded to the right total."""
        if self.labels is None:
            return None
        exact = self.labels * samples
        whole = exact.floor()
        missing = round(samples - float(whole.sum()))
        first = (exact - whole).argsort(descending=True, stable=True)[:missing]
        whole[first] += 1
        return whole.to(torch.int64)


def infer(
    model: Model, before: Tree, sent: Tree, *, shares: Shares, loss: str = "cross_entropy", public: Tensor | None = None
) -> Inferred:
    """Return what one client's update reveals; trees may hold buffers too, as captures do.

    `public` are inputs like the client's, in network space; without them the mean prediction is taken on random inputs. If the
    network already separates inputs, neither predicts the client's outputs, and labels and rate are unknown.
    """
    names = [name for name in model.parameters if name in sent and name in before]
    change = {n: sent[n] if shares is Shares.GRADIENT else before[n].to(sent[n].dtype) - sent[n] for n in names}
    steps = _steps(before, sent, shares)
    adam = _adam_rate(change) if shares is Shares.WEIGHTS else None
    samples = _unknown(SAME) if adam is not None else _samples(model, change, steps, shares)
    product, labels, why = _labels(model, before, sent, change, shares, loss, public, adam=adam)
    return Inferred(samples, labels, why, steps, _rate(steps, product, adam, shares), product)


# -- how many examples


def _samples(model: Model, change: Tree, steps: Guess, shares: Shares) -> Guess:
    """Return N from the rank of a dense layer's change: the input layer for any number of steps, the output layer for one."""
    one = shares is Shares.GRADIENT or steps.value == 1
    guesses: list[Guess] = []
    if model.entry is not None and model.entry.weight in change:
        guesses.append(_rank_guess(change[model.entry.weight], 0, "rank of the first layer's change"))
    if model.head is not None and model.head.weight in change and one:
        guesses.append(_rank_guess(change[model.head.weight], 1, "rank of the last layer's gradient"))
    known = [guess for guess in guesses if guess.value is not None]
    if known or guesses:
        return max(known, key=lambda guess: guess.value or 0) if known else guesses[0]
    if model.head is None and model.entry is None:
        return _unknown("no dense layer reads the input or makes the output")
    return _unknown("only the last layer is dense, and after several steps its rank mixes steps and examples")


def _unknown(why: str) -> Guess:
    return Guess(None, Sure.UNKNOWN, why)


def _rank_guess(matrix: Tensor, lost: int, why: str) -> Guess:
    """Return the rank as a number of examples; `lost` ranks are missing by construction (softmax rows sum to zero)."""
    matrix = matrix.double().reshape(matrix.shape[0], -1)
    values = torch.linalg.svdvals(matrix)
    if not 0 < float(values[0]) < math.inf:
        return _unknown("the update is zero, or too large for a number")
    least = RANK_TOLERANCE * values[0]
    rank = int((values > least).sum())
    rows, columns = (int((matrix.norm(dim=side) > least).sum()) for side in (1, 0))
    if rank > ROOM * min(rows - lost, columns):
        return _unknown(f"{why} is full or nearly: too many examples, noise, or an optimiser other than SGD")
    if float(values[rank]) > GAP * float(values[rank - 1]):
        return _unknown(f"{why} has no clear end: noise, rounding, or an optimiser other than SGD")
    return Guess(float(rank), Sure.ABOUT, why)


# -- labels, and the learning rate times the number of steps


def _labels(
    model: Model,
    before: Tree,
    sent: Tree,
    change: Tree,
    shares: Shares,
    loss: str,
    public: Tensor | None,
    *,
    adam: float | None,
) -> tuple[Guess, Tensor | None, str]:
    """Return (rate times steps, label shares, why)."""
    head, problem = model.head, None
    if head is None or head.bias is None or head.bias not in change:
        problem = "the model does not end in a dense layer with a bias that was sent"
    elif loss != "cross_entropy":
        problem = f"the loss is {loss}; only cross entropy can be read this way"
    elif adam is not None:
        problem = SAME
    if problem is not None or head is None or head.bias is None:
        return _unknown(problem or ""), None, problem or ""
    held = [before] if shares is Shares.GRADIENT else [before, {**before, **sent}]
    predictions = [_predictions(model, weights, public) for weights in held]
    if float((predictions[0] - predictions[0].mean(0)).abs().sum(-1).mean()) / 2 > SPREAD:
        return _unknown(TRAINED_NETWORK), None, TRAINED_NETWORK
    mean = torch.stack([each.mean(0) for each in predictions]).mean(0)
    drop = change[head.bias].double()
    if shares is Shares.GRADIENT:
        product = Guess(1.0, Sure.EXACT, "a gradient was sent")
    else:
        quotient = float((drop / mean.clamp_min(TINY)).max())
        product = Guess(quotient, Sure.ABOUT, "from classes that did not occur; a lower bound if all did")
    if product.value is None or not 0 < product.value < math.inf:
        return _unknown(UNMOVED), None, UNMOVED
    share = (mean - drop / product.value).clamp_min(0)
    return product, (share / share.sum().clamp_min(TINY)), "from the change of the last bias and the mean prediction"


def _predictions(model: Model, weights: Tree, public: Tensor | None) -> Tensor:
    """Return the class probabilities of inputs at given weights."""
    parameters = {n: weights.get(n, v).to(v.dtype) for n, v in model.parameters.items()}
    buffers = {n: weights.get(n, v).to(v.dtype) for n, v in model.buffers.items()}
    first = next(iter(parameters.values()))
    x = random.uniform(random.key(0), (DUMMIES, *model.input_shape), first.dtype) if public is None else public
    with torch.no_grad():
        output = model.apply(parameters, buffers, x.to(first.dtype), random.key(0))[0]
    return output.double().softmax(-1)


# -- steps and rate


def _steps(before: Tree, sent: Tree, shares: Shares) -> Guess:
    """Return the number of local steps if batch norm's counter was sent."""
    if shares is Shares.GRADIENT:
        return Guess(1.0, Sure.EXACT, "a gradient was sent")
    counters = [name for name in sent if name.rpartition(".")[2] == COUNTER and name in before]
    if not counters:
        return _unknown("no batch norm counter was sent; the update alone shows the rate times the steps")
    counted = {round(float(sent[name].double() - before[name].double())) for name in counters}
    if len(counted) != 1 or min(counted) < 1:
        return _unknown("batch norm's counters disagree or did not move")
    return Guess(float(counted.pop()), Sure.EXACT, "batch norm counts the batches it saw")


def _rate(steps: Guess, product: Guess, adam: float | None, shares: Shares) -> Guess:
    if shares is Shares.GRADIENT:
        return _unknown("a gradient was sent; it does not depend on the rate")
    if adam is not None:
        return Guess(adam, Sure.ABOUT, "every weight moved by this much: one step of Adam, or signs")
    if steps.value is None or product.value is None:
        return _unknown("the rate and the number of steps cannot be separated with one update")
    return Guess(product.value / steps.value, Sure.ABOUT, "rate times steps over the steps that batch norm counted")


def _adam_rate(change: Tree) -> float | None:
    """Return by how much every weight moved, if all moved by the same amount; else None."""
    moved = torch.cat([value.double().abs().reshape(-1) for value in change.values()])
    moved = moved[moved > 0]
    if len(moved) < 10:
        return None
    low, middle, high = (float(torch.quantile(moved[:1_000_000], q)) for q in (0.1, 0.5, 0.9))
    return middle if high - low <= ADAM_SPREAD * middle else None
