"""A rewritten graph computes the same function, with fewer convolutions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from leakscope.kernels.cpu_graph import for_cpu
from leakscope.kernels.graph_cache import Flat
from leakscope.kernels.operations import operations_of

torch.set_num_threads(1)


def network(channels: int, stride: int, kernel: int) -> nn.Module:
    first = nn.Conv2d(channels, 4, kernel, stride=stride, padding=kernel // 2)
    last = nn.Conv2d(4, 3, 3, bias=False)
    return nn.Sequential(first, nn.Sigmoid(), last, nn.Sigmoid(), nn.Flatten(), nn.LazyLinear(2)).double()


def evaluation(net: nn.Module, last: bool) -> tuple[object, list[Tensor]]:
    """Return a matching objective's gradient in the images as a function of images and observed gradient."""
    weights = [w.detach() for w in net.parameters()]
    names = [name for name, _ in net.named_parameters()]

    def f(x: Tensor, *seen: Tensor) -> Flat:
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        x = x.detach().requires_grad_()
        point = {name: w.requires_grad_() for name, w in zip(names, (w.detach() for w in weights), strict=True)}
        with torch.enable_grad():
            loss = torch.func.functional_call(net, point, (x,)).square().mean()
            slopes = torch.autograd.grad(loss, list(point.values()), create_graph=True)
            value = torch.stack([(g - s).square().sum() for g, s in zip(slopes, seen, strict=True)]).sum()
            value = value + x.square().sum()
            (slope,) = torch.autograd.grad(value, x)
        return slope, value.detach()

    return f, weights


def convolutions(graph: GraphModule) -> int:
    return sum("conv" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("last", [False, True], ids=["as is", "channels last"])
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(("channels", "stride", "kernel"), [(1, 2, 5), (3, 2, 3), (3, 1, 3), (9, 2, 5), (1, 1, 3)])
def test_the_rewritten_graph_computes_the_same(
    channels: int, stride: int, kernel: int, images: int, last: bool
) -> None:
    torch.manual_seed(0)
    net = network(channels, stride, kernel)
    x = torch.randn(images, channels, 8, 8, dtype=torch.float64)
    net(x)  # the size of the last layer
    f, weights = evaluation(net, last)
    seen = [torch.randn_like(w) for w in weights]
    graph = operations_of(f, [x, *seen])  # type: ignore[arg-type]
    before = convolutions(graph)
    fast = for_cpu(graph, channels_last=last)
    assert not any("detach" in str(node.target) for node in fast.graph.nodes)
    merged = (images == 1 and not last) or (channels < 8 and stride > 1)
    assert (convolutions(fast) < before) == merged
    for _ in range(2):
        x = torch.randn_like(x)
        torch.testing.assert_close(fast(x, *seen), f(x, *seen), rtol=1e-9, atol=1e-12)  # type: ignore[operator]
