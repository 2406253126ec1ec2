"""Label recovery from the last layer's gradient, before any optimisation.

For cross entropy with logits `o = W h + b` the mean gradient over N examples is

    dL/db_c  = mean_i (p_ic - y_ic)            dL/dW_c = mean_i (p_ic - y_ic) h_i

so a class that occurs pulls its bias gradient below zero. A bias gradient is preferred: it does not depend on the features h.
Without one the sum of row c replaces it, which is valid only for non-negative h (sigmoid, relu) and refused otherwise. The
product rule of iDLG (rows of other classes point the other way) needs no sign of h.

Ambiguous cases: with two classes and one example the rows are exact opposites, so the product rule cannot separate them (the bias
can); with tanh features and no bias the row sum has no fixed sign; soft or mixed labels are no single label. MSE has `2 (o_c -
y_c) / C` in place of `p_c - y_c`, which need not be negative for the true class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, Model
from leakscope.core.tree import lift, norm
from leakscope.core.types import Knowledge, Observation, Shares, direction

LabelRule = Callable[[Model, Observation, Knowledge, Tensor], Tensor]
DUMMIES = 64
ROUNDS = 4  # iterations of `_read_length`
TOUCHING = 0.999  # share of the bound from which an update counts as clipped


def known(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the labels that the attacker knows."""
    del model, observation, key
    if knowledge.labels is None:
        raise InputError("label rule 'known' needs Knowledge.labels; use 'idlg', 'cpl', 'counts' or 'joint' instead")
    return knowledge.labels


def _head(model: Model) -> Dense:
    if model.head is None:
        raise InputError(f"model {model.name!r} does not end in a dense layer: its labels cannot be read; use 'joint'")
    return model.head


def _last_layer(model: Model, observation: Observation) -> tuple[Tensor, Tensor | None]:
    """Return (weight gradient T x C x F, bias gradient T x C or None) of the last layer, averaged over rounds."""
    head = _head(model)
    if head.weight in model.private or head.bias in model.private:
        raise InputError(
            f"the last layer of {model.name!r} ({head.weight}) is private: labels cannot be read; use 'joint'"
        )
    sent = [direction(seen, observation.shares) for seen in observation.rounds]
    weight = torch.stack([s[head.weight] for s in sent]).mean(0)
    bias = torch.stack([s[head.bias] for s in sent]).mean(0) if head.bias is not None else None
    return weight, bias


def chosen_rule(labels: str, samples: int, *, known: bool) -> str:
    """Return the rule that an attack's `labels` means; 'auto' uses known labels, else the rule for this number of examples.

    >>> chosen_rule("auto", 1, known=False), chosen_rule("auto", 4, known=False), chosen_rule("idlg", 1, known=True)
    ('cpl', 'counts', 'idlg')
    """
    if labels != "auto":
        return labels
    return "known" if known else ("cpl" if samples == 1 else "counts")


def _cross_entropy_only(rule: str, knowledge: Knowledge) -> None:
    if knowledge.loss != "cross_entropy":
        raise InputError(
            f"label rule {rule!r} reads cross entropy gradients, the loss is {knowledge.loss!r}; use 'joint'"
        )


def _one_example(rule: str, knowledge: Knowledge) -> None:
    _cross_entropy_only(rule, knowledge)
    if knowledge.samples != 1:
        raise InputError(f"label rule {rule!r} is for one example, the batch has {knowledge.samples}; use 'counts'")


def check_head(rule: str, model: Model) -> None:
    """Raise if a rule cannot read labels from the last layer of this network."""
    if _head(model).bias is None and rule != "idlg":
        _check_signs(model)


def _check_signs(model: Model) -> None:
    if not _head(model).nonnegative:
        raise InputError(
            f"the last layer of {model.name!r} has no bias and its features may be negative: row sums say nothing about "
            "the label; use 'idlg' (product rule, one example) or 'joint'"
        )


def _class_pull(model: Model, observation: Observation) -> Tensor:
    """Return T x C, negative for classes that occur: the bias gradient, or the row sums of non-negative features."""
    weight, bias = _last_layer(model, observation)
    if bias is not None:
        return bias
    _check_signs(model)
    return weight.sum(-1)


def _whole_rows(model: Model, knowledge: Knowledge) -> bool:
    """Return whether to read the sum of a class's row: more robust than the bias to known masks or noise; needs non-negative features."""
    return (knowledge.mask is not None or knowledge.sigma is not None) and _head(model).nonnegative


def cpl(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the class with the smallest last-layer gradient (CPL's Algorithm 1, line 9); of whole rows if `_whole_rows`."""
    del key
    _one_example("cpl", knowledge)
    if _whole_rows(model, knowledge):
        weight, bias = _last_layer(model, observation)
        return (weight.sum(-1) + (0 if bias is None else bias)).argmin(1, keepdim=True)
    return _class_pull(model, observation).argmin(1, keepdim=True)


def idlg(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the one class whose gradient points against all others (iDLG, Zhao et al. 2020): by the bias, else by row products."""
    _one_example("idlg", knowledge)
    weight, bias = _last_layer(model, observation)
    if bias is not None and _whole_rows(model, knowledge):
        return cpl(model, observation, knowledge, key)
    if bias is not None:
        return bias.argmin(1, keepdim=True)
    gram = weight @ weight.mT
    against = gram.sum(-1) - gram.diagonal(dim1=1, dim2=2)
    opposed = (gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2)) <= 0).all(-1)
    return torch.where(opposed, against - against.abs().amax(1, keepdim=True) * 2, against).argmin(1, keepdim=True)


def counts(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return N labels in class order, from `n_c = N (p_c - dL/db_c)`.

    The mean prediction p is taken on random inputs at the weights the attacker holds, averaged over before and after if weights
    were sent. Fractions are rounded by largest remainder so that the counts add up to N. Without Knowledge.local the length of a
    weight update is estimated from the missing classes (see `_length`).
    """
    _cross_entropy_only("counts", knowledge)
    gradient = _class_pull(model, observation)
    if _head(model).bias is None:
        gradient = gradient / _feature_sum(model, observation, knowledge, key)[:, None].clamp_min(1e-12)
    prediction = _mean_prediction(model, observation, knowledge, key)
    if observation.shares is Shares.WEIGHTS:
        gradient = gradient / _length(gradient, prediction, knowledge)
    if knowledge.bound is not None:
        shrunk = _clipped(model, observation, knowledge, knowledge.bound)
        gradient = torch.where(shrunk, gradient / _read_length(gradient, prediction, knowledge), gradient)
    share = (prediction - gradient).clamp_min(0)
    return _apportion(share / share.sum(1, keepdim=True).clamp_min(1e-12), _present(knowledge, share))


def _present(knowledge: Knowledge, like: Tensor) -> Tensor:
    """Return which slots of each client hold an example (T x N): all, or those known for a smaller client."""
    if knowledge.present is not None:
        return knowledge.present
    return torch.ones(len(like), knowledge.samples, dtype=torch.bool, device=like.device)


def _length(pull: Tensor, prediction: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the divisor that turns an update into a mean gradient (T x 1): `LocalTraining.length` if known (SGD), else `_read_length`."""
    local, total = knowledge.local, _present(knowledge, pull).sum(1)
    if local is not None and local.optimiser == "sgd":
        return local.length([int(n) for n in total.tolist()]).to(pull)[:, None]
    return _read_length(pull, prediction, knowledge)


def _clipped(model: Model, observation: Observation, knowledge: Knowledge, bound: Tensor) -> Tensor:
    """Return whether the known clip shrank an update, T x 1: its norm equals the bound."""
    first, head = observation.rounds[0], _head(model)
    sent = direction(first, observation.shares)
    if knowledge.bound_each:
        name = head.weight if head.bias is None else head.bias
        sent = {name: sent[name]}
    return (lift(norm)(sent) >= TOUCHING * bound.to(observation.samples.device))[:, None]


def _read_length(pull: Tensor, prediction: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the length s of an update estimated from its classes (T x 1), for updates of unknown length or clipped ones.

    Solves `pull_c = s (p_c - n_c / N)` for s: a class without samples is pushed by `s p_c`. At least C - N classes are such,
    those of the largest `pull_c / p_c`; with the resulting s, classes of less than half a sample join them. If every class
    occurs, s is too small and the counts are too uneven.
    """
    total = _present(knowledge, pull).sum(1)
    number = max(pull.shape[1] - knowledge.samples, 1)
    ratio = pull / prediction.clamp_min(1e-12)
    surely = ratio >= ratio.topk(number, dim=1).values[:, -1:]
    missing = surely
    for _ in range(ROUNDS):
        length = (pull * missing).sum(1, keepdim=True) / (prediction * missing).sum(1, keepdim=True).clamp_min(1e-12)
        length = length.clamp_min(1e-12)
        missing = surely | (total[:, None] * (prediction - pull / length) < 0.5)
    return length


def _dummies(knowledge: Knowledge, key: Tensor, like: Tensor) -> Tensor:
    pictures = random.uniform(random.fold(key, "dummies"), (DUMMIES, *knowledge.input_shape)).to(like)
    return knowledge.scaling.scale(pictures, len(knowledge.input_shape))


def _outputs(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> list[Tensor]:
    """Return the logits of random inputs at every set of weights the attacker holds (T x 64 x C each)."""
    first = observation.rounds[0]
    held = [first.before]
    local = knowledge.local
    if observation.shares is Shares.WEIGHTS and not (local and local.steps(knowledge.samples) == 1):
        held.append({**first.before, **first.sent})
    x = _dummies(knowledge, key, next(iter(first.before.values())))
    return [lift(lambda w, b, x, k: model.apply(w, b, x, k)[0])(w, first.buffers, x, key) for w in held]


def _mean_prediction(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    outputs = _outputs(model, observation, knowledge, key)
    return torch.stack([o.softmax(-1).mean(1) for o in outputs]).mean(0)


def _feature_sum(model: Model, observation: Observation, knowledge: Knowledge, key: Tensor) -> Tensor:
    """Return the mean over random inputs of the sum of features entering the last layer: d(mean o_0)/dW_0 summed."""
    first, head = observation.rounds[0], _head(model)
    x = _dummies(knowledge, key, next(iter(first.before.values())))

    def one(w: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, k: Tensor) -> Tensor:
        def logit(weight: Tensor) -> Tensor:
            return model.apply({**w, head.weight: weight}, b, x, k)[0][:, 0].mean()

        row: Tensor = torch.func.grad(logit)(w[head.weight])[0]
        return row.sum()

    return lift(one)(first.before, first.buffers, x, key)


def _apportion(share: Tensor, present: Tensor) -> Tensor:
    """Return labels (T x N): class c about `n share_c` times in the n present slots, rounded by largest remainder, in class order."""
    total = present.sum(1, keepdim=True)
    exact = share * total
    whole = exact.floor()
    missing = total - whole.sum(1, keepdim=True)
    rank = (exact - whole).argsort(dim=1, descending=True, stable=True).argsort(dim=1, stable=True)
    number = (whole + (rank < missing)).to(torch.int64)
    slots = (present.to(torch.int64).cumsum(1) - 1).clamp_min(0)
    return torch.searchsorted(number.cumsum(1), slots, right=True).clamp_max(share.shape[1] - 1)


LABEL_RULES: dict[str, LabelRule] = {"known": known, "idlg": idlg, "cpl": cpl, "counts": counts}
JOINT = "joint"
