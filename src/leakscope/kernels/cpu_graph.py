"""Rewrites the flat graph of one trial for a CPU: the same mathematics in fewer and faster operations.

- `detach` of a value that is not differentiated any more is the value.
- Convolutions of one small image run on torch's own kernels: oneDNN takes 0.1 to 0.4 ms to prepare each, as torch itself assumes
  for kernels up to 3 x 3.
- A double backward sends two gradients to the input of a layer, with the cotangent of its output and with the weights' own. Both are
  one data gradient over twice the output channels. With few input channels and a stride oneDNN's takes ten times the others.

Sums are rounded in another order than without the rewriting.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

ATEN = torch.ops.aten
SMALL = 20_480  # numbers of an image up to which torch leaves oneDNN out for kernels up to 3 x 3
FEW_CHANNELS = 8  # below which oneDNN's data gradient is slow if there is a stride


@dataclass(frozen=True, slots=True)
class _DataGradient:
    """The gradient of a convolution's input: `result` holds it, given the gradient of the output and the filters."""

    result: Node
    slope: Node
    filters: Node
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def settings(self) -> tuple[object, ...]:
        """Return what two gradients must share to be computed as one."""
        return _shape(self.result), self.stride, self.padding, _shape(self.filters)[1:], _shape(self.slope)[2:]


def for_cpu(graph: GraphModule, *, channels_last: bool = False) -> GraphModule:
    """Return the graph, rewritten in place; with `channels_last` small images keep oneDNN, whose kernels want that layout."""
    for node in list(graph.graph.nodes):
        if node.target is ATEN.detach.default:
            node.replace_all_uses_with(node.args[0])
    if all(
        "val" in node.meta for node in graph.graph.nodes if node.op in ("placeholder", "get_attr")
    ):  # shapes are known
        _merge(graph.graph, small=not channels_last)
        for node in [] if channels_last else list(graph.graph.nodes):
            _without_preparation(graph.graph, node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args


def _data_gradient(node: object) -> _DataGradient | None:
    """Return a node as a data gradient of an ungrouped, undilated convolution with nothing else to compute; None if it is none."""
    if not isinstance(node, Node) or node.op != "call_function" or len(node.users) != 1:
        return None
    if node.target is operator.getitem and node.args[1] == 0:
        back = node.args[0]
        if not isinstance(back, Node) or back.target is not ATEN.convolution_backward.default:
            return None
        slope, _, filters, _, stride, padding, dilation, turned, _, groups, mask = _arguments(back)
        if mask != [True, False, False] or turned:
            return None
    elif node.target is ATEN.convolution.default and node.args[6] and node.args[2] is None:
        slope, filters, _, stride, padding, dilation, _, _, groups = _arguments(node)
    else:
        return None
    if groups != 1 or set(dilation) != {1} or len(stride) != 2:
        return None
    return _DataGradient(node, slope, filters, tuple(stride), tuple(padding))


def _terms(total: Node) -> Iterator[Any]:
    """Yield the terms of a sum of tensors of one shape."""
    for term in total.args[:2]:
        inner = isinstance(term, Node) and term.target is ATEN.add.Tensor and len(term.users) == 1 and not term.kwargs
        if inner and _shape(term) == _shape(total):  # type: ignore[arg-type]
            yield from _terms(term)  # type: ignore[arg-type]
        else:
            yield term


def _merge(graph: Graph, *, small: bool) -> None:
    """Compute data gradients that are added up as one where that pays; of small images always if `small`."""
    for total in reversed([node for node in graph.nodes if node.target is ATEN.add.Tensor and not node.kwargs]):
        if not total.users or (len(total.users) == 1 and next(iter(total.users)).target is ATEN.add.Tensor):
            continue  # its terms belong to a larger sum
        terms = list(_terms(total))
        parts = [part for part in map(_data_gradient, terms) if part is not None]
        alike = [part for part in parts if part.settings == parts[0].settings]
        if len(alike) < 2 or not (_is_slow(alike[0]) or (small and _is_small(alike[0].result))):
            continue
        gone = [part.result for part in alike]
        rest = [term for term in terms if not (isinstance(term, Node) and term in gone)]
        with graph.inserting_before(total):
            slope = graph.call_function(ATEN.cat.default, ([part.slope for part in alike], 1))
            filters = graph.call_function(ATEN.cat.default, ([part.filters for part in alike], 0))
            if not small:  # torch's own kernels mistake the layout of one channel
                plain: dict[str, Argument] = {"memory_format": torch.contiguous_format}
                slope, filters = (graph.call_function(ATEN.clone.default, (each,), plain) for each in (slope, filters))
            result = _own_data_gradient(graph, alike[0], slope, filters)
            for term in rest:
                whole = graph.call_function(ATEN.add.Tensor, (result, term))
                whole.meta["val"] = total.meta["val"]
                result = whole
        total.replace_all_uses_with(result)
    graph.eliminate_dead_code()


def _is_slow(part: _DataGradient) -> bool:
    return _shape(part.result)[1] < FEW_CHANNELS and max(part.stride) > 1


def _is_small(node: Node) -> bool:
    images, *rest = _shape(node)
    return images == 1 and torch.Size(rest).numel() <= SMALL


def _own_data_gradient(graph: Graph, like: _DataGradient, slope: Node, filters: Node) -> Node:
    """Return torch's own data gradient; the input itself does not matter, only its shape."""
    room = graph.call_function(ATEN.new_empty.default, (slope, list(_shape(like.result))))
    kernel = list(_shape(like.filters)[2:])
    settings = (slope, room, filters, kernel, list(like.stride), list(like.padding), [True, False, False])
    back = graph.call_function(ATEN._slow_conv2d_backward.output_mask, settings)
    result = graph.call_function(operator.getitem, (back, 0))
    for node, value in ((room, like.result), (result, like.result)):
        node.meta["val"] = value.meta["val"]
    return result


def _without_preparation(graph: Graph, node: Node) -> None:
    """Replace a convolution of one small image, or its gradients, by torch's own kernels."""
    gradient = _data_gradient(node)
    if gradient is not None and _is_small(node):
        with graph.inserting_before(node):
            node.replace_all_uses_with(_own_data_gradient(graph, gradient, gradient.slope, gradient.filters))
    elif node.target is ATEN.convolution.default:
        x, filters, bias, stride, padding, dilation, turned, _, groups = _arguments(node)
        if _is_plain(x, dilation, turned, groups):
            with graph.inserting_before(node):
                kernel = list(_shape(filters)[2:])
                arguments = (x, filters, kernel, bias, stride, padding)
                new = graph.call_function(ATEN._slow_conv2d_forward.default, arguments)
            new.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(new)
    elif node.target is ATEN.convolution_backward.default:
        _gradients_without_preparation(graph, node)


def _gradients_without_preparation(graph: Graph, node: Node) -> None:
    slope, x, filters, _, stride, padding, dilation, turned, _, groups, mask = _arguments(node)
    if not _is_plain(x, dilation, turned, groups):
        return
    with graph.inserting_before(node):
        kernel = list(_shape(filters)[2:])
        settings = (slope, x, filters, kernel, stride, padding, [mask[0], mask[1], False])
        new = graph.call_function(ATEN._slow_conv2d_backward.output_mask, settings)
        bias = graph.call_function(ATEN.sum.dim_IntList, (slope, [0, 2, 3])) if mask[2] else None
    for user in list(node.users):
        if user.args[1] == 2 and bias is not None:
            bias.meta["val"] = user.meta["val"]
            user.replace_all_uses_with(bias)
        else:
            user.args = (new, user.args[1])


def _is_plain(x: Node, dilation: list[int], turned: bool, groups: int) -> bool:
    return not turned and groups == 1 and set(dilation) == {1} and len(_shape(x)) == 4 and _is_small(x)
