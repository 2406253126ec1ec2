"""Low-rank adapters: `y = W x + b + s B A x` with W and b frozen (LoRA, Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from leakscope.core.errors import InputError
from leakscope.models.settings import positive


class LowRank(nn.Module):
    """A frozen dense layer with trained factors: `inner` (A, r x d) as a dense layer's first weights, `outer` (B, o x r) 0."""

    def __init__(self, dense: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.dense, self.scale = dense, scale
        like = {"device": dense.weight.device, "dtype": dense.weight.dtype}
        self.inner = nn.Linear(dense.in_features, rank, bias=False, **like)
        self.outer = nn.Linear(rank, dense.out_features, bias=False, **like)
        nn.init.zeros_(self.outer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the dense layer's output with the adapter's added."""
        output: Tensor = self.dense(x) + self.scale * self.outer(self.inner(x))
        return output


def adapt(
    module: nn.Module, *, rank: int = 8, layers: Collection[str] = ("query", "value"), scale: float = 1.0
) -> nn.Module:
    """Return the module, changed in place: all weights frozen, and adapters on the dense layers whose last name is in `layers`.

    Only the adapters are trained, so a client shares nothing else. Other parameters can be trained again by `requires_grad_`.
    """
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    chosen = [name for name in names if name.rpartition(".")[2] in layers]
    if not chosen:
        raise InputError(
            f"adapt found no dense layer called {' or '.join(layers)}; the model has {', '.join(names[:6])}"
        )
    module.requires_grad_(False)
    for name in chosen:
        dense = module.get_submodule(name)
        if isinstance(dense, nn.Linear):
            if positive("rank", rank) >= min(dense.weight.shape):
                raise InputError(f"rank must be below both sides of {name}, {tuple(dense.weight.shape)}, got {rank}")
            module.set_submodule(name, LowRank(dense, rank, scale))
    return module
