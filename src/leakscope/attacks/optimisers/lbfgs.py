"""L-BFGS for T trials at once, with the rules of torch.optim.LBFGS without line search.

One iteration is one `step()` of torch's: up to `inner` directions, with a memory that persists between steps. Each trial has its
own inner counter, memory and stopping; one evaluation of the batch advances them all.

The direction is torch's two-loop recursion written as products. With S, Y the stored steps and gradient changes, R the upper
triangle of S^T Y in order of age, D its diagonal and gamma = s^T y / y^T y of the newest pair,

    alpha = R^-1 S^T g                     (first loop)
    r     = gamma (g - Y alpha)
    c     = R^-T (D alpha - Y^T r)         (second loop: R^T c = D alpha - Y^T r  where  c = alpha - beta)
    d     = -(r + S c)

R^-1 is kept: a new pair appends the column (-R^-1 S^T y, 1) / y^T s, and the oldest pair leaves with its row and column, as the rest of
an inverse triangle is the inverse of the rest. In the order of the slots it is permuted on both sides, so pairs are never sorted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.optimisers.rules import Memory, Moment, Rule, Rules, check_rate, column, projected
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, rows
from leakscope.core.types import Knowledge

CURVATURE = 1e-10
BLOCKS = {"cpu": 8, "cuda": 32}  # pairs by which the used memory grows; a CUDA device records each size


def flatten(tree: Tree) -> Tensor:
    """Return a tree of T x ... tensors as one T x D matrix."""
    return torch.cat([rows(value) for value in tree.values()], dim=1)


def unflatten(flat: Tensor, like: Tree) -> Tree:
    """Return the inverse of `flatten`."""
    parts = flat.split([value[0].numel() for value in like.values()], dim=1)
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


@dataclass(frozen=True, slots=True)
class LBFGS:
    """L-BFGS as torch.optim.LBFGS(line_search_fn=None): fixed rate, `inner` directions per iteration."""

    rate: float | Tensor = 1.0
    inner: int = 20
    history: int = 100
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9

    def __post_init__(self) -> None:
        check_rate("LBFGS", self.rate)
        if self.inner < 1 or self.history < 1:
            raise InputError(f"LBFGS.inner and LBFGS.history must be at least 1, got {self.inner}, {self.history}")

    def check(self, rules: Rules) -> None:
        """Raise for sign rules and schedules (meaningless in a quasi-Newton step) and for unknowns that rest."""
        for name, rule in rules.items():
            if rule.sign or rule.schedule is not None:
                raise InputError(
                    f"LBFGS takes no sign rule and no schedule (unknown {name!r}); use Adam, Adagrad or SGD"
                )
            if rule.every > 1:
                raise InputError(
                    f"LBFGS moves all unknowns at every evaluation, so Rule.every must be 1, got {rule.every} (unknown {name!r}); "
                    "use Adam, Adagrad or SGD"
                )

    def phase(self, tick: int) -> Hashable:
        """Return how many pairs the memory may hold at this tick on a CUDA device, in blocks; 0 at the first tick."""
        return self._depth(tick, BLOCKS["cuda"])

    def numbers(self, rule: Rule, tick: int) -> tuple[float, ...]:
        """Return nothing: a step is the same at every tick of a phase."""
        del rule, tick
        return ()

    def _depth(self, tick: int, block: int) -> int:
        return min(self.history, -(-tick // block) * block)

    def begin(self, unknowns: Tree) -> Memory:
        """Return an empty memory."""
        x = flatten(unknowns)
        T, D = x.shape
        whole = torch.zeros(T, dtype=torch.int64, device=x.device)
        return {
            "s": x.new_zeros(T, self.history, D),
            "y": x.new_zeros(T, self.history, D),
            "inverse": x.new_zeros(T, self.history, self.history),
            "diagonal": x.new_zeros(T, self.history),
            "count": whole.clone(),
            "head": whole.clone(),
            "inner": whole.clone(),
            "gamma": x.new_ones(T),
            "step": torch.zeros_like(x),
            "gradient": torch.zeros_like(x),
            "value": x.new_zeros(T),
        }

    def settle(self, state: Memory, moment: Moment) -> tuple[Tensor, Tensor]:
        """Return whose step() just ended (torch's four reasons), and whose gradient has vanished."""
        largest = torch.stack([rows(g).abs().amax(1) for g in moment.gradient.values()]).amax(0)
        flat = largest <= self.tolerance_gradient
        still = state["step"].abs().amax(1) <= self.tolerance_change
        level = (moment.value - state["value"]).abs() < self.tolerance_change
        # torch also stops a step at inner * 5 // 4 evaluations, which cuts one direction off where inner is 2 or 3
        most = min(self.inner, max(self.inner * 5 // 4 - 1, 1))
        ended = (state["inner"] > 0) & ((state["inner"] >= most) | flat | still | level)
        state["inner"].masked_fill_(ended, 0)
        return ended, flat & (state["inner"] == 0)

    @property
    def evaluations(self) -> int:
        """Return the directions per iteration: each is evaluated once."""
        return self.inner

    def midway(self, state: Memory, moment: Moment) -> Tensor:
        """Return which trials are between the directions of an iteration."""
        del moment
        begun: Tensor = state["inner"] > 0
        return begun

    def move(
        self, unknowns: Tree, state: Memory, moment: Moment, rules: Rules, knowledge: Knowledge
    ) -> tuple[Tree, Tensor]:
        """Return the unknowns after one direction, and which trials have no descent direction."""
        g = flatten(moment.gradient)
        rate = column(self.rate, g)
        if moment.tick == 0:
            d = -g
            rate = rate * (1 / g.abs().sum(1, keepdim=True)).clamp_max(1.0)
        else:
            d = self._direction(state, g, moment.tick)
        stuck = (g * d).sum(1) > -self.tolerance_change
        x = flatten(unknowns)
        step = d * (rate * self._leaf_rates(unknowns, rules, moment))
        new = x + step
        if any(rules[name].project for name in unknowns):
            new = flatten(projected(unflatten(new, unknowns), rules, knowledge))
            step = new - x
        state["step"], state["gradient"], state["value"] = step, g, moment.value.clone()
        state["inner"] = torch.where(stuck, 0, state["inner"] + 1)
        return unflatten(torch.where(stuck[:, None], x, new), unknowns), stuck

    def _leaf_rates(self, unknowns: Tree, rules: Rules, moment: Moment) -> Tensor | float:
        factors = {name: rules[name].factor(moment.iteration) for name in unknowns}
        if all(isinstance(f, float | int) and f == 1 for f in factors.values()):
            return 1.0
        return flatten(
            {name: torch.ones_like(value) * column(factors[name], value) for name, value in unknowns.items()}
        )

    def _direction(self, state: Memory, g: Tensor, tick: int) -> Tensor:
        """Return -H g after storing the newest pair."""
        y, s = g - state["gradient"], state["step"]
        ys = (y * s).sum(1)
        curved = ys > CURVATURE
        lanes = torch.arange(g.shape[0], device=g.device)
        slot = state["head"]
        for name, new in (("s", s), ("y", y)):
            memory = state[name]
            memory[lanes, slot] = torch.where(curved[:, None], new, memory[lanes, slot])
        state["gamma"] = torch.where(curved, ys / (y * y).sum(1), state["gamma"])
        state["head"] = torch.where(curved, (slot + 1) % self.history, slot)
        state["count"] = torch.where(curved, (state["count"] + 1).clamp_max(self.history), state["count"])

        # rows that the memory may hold at this tick: independent of a trial's neighbours
        depth = self._depth(tick, BLOCKS[g.device.type])
        S, Y, inverse = state["s"][:, :depth], state["y"][:, :depth], state["inverse"][:, :depth, :depth]
        products = torch.bmm(torch.stack([g, y], dim=1), S.mT)  # twice as fast on CPU as S times a column
        newest = (torch.arange(depth, device=g.device) == slot[:, None]) & curved[:, None]
        diagonal = torch.where(newest, ys[:, None], state["diagonal"][:, :depth])
        state["diagonal"][:, :depth] = diagonal
        above = torch.bmm(products[:, 1:].masked_fill(newest[:, None], 0.0), inverse.mT)[:, 0]
        appended = torch.where(newest, 1.0, -above) / ys[:, None]
        inverse[lanes, slot] = torch.where(curved[:, None], 0.0, inverse[lanes, slot])
        inverse[lanes, :, slot] = torch.where(curved[:, None], appended, inverse[lanes, :, slot])

        alpha = torch.bmm(products[:, :1], inverse.mT)
        r = (g - torch.bmm(alpha, Y)[:, 0]) * state["gamma"][:, None]
        c = torch.bmm(diagonal[:, None] * alpha - torch.bmm(r[:, None], Y.mT), inverse)
        d: Tensor = -(r + torch.bmm(c, S)[:, 0])
        return d
