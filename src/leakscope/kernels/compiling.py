"""Two changes to a traced graph before it is compiled: copies of tensors that are written to, and long sums in parts.

The gradient of a filter sums over all positions of all images: 64 x 27 numbers, each a sum of 51,200 terms for 50 images of 32 x
32. A GPU library distributes the results over its cores, which leaves most of them idle here. Cut into equal parts the sum
becomes a batched product. The cut depends on the shapes of one trial alone, so a trial's bits do not depend on its neighbours.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

LONG = 4096  # terms from which a sum is cut
LEAST = 1024  # least terms of a part: shorter ones write more than they gain
FEW = 32 * 128 * 128  # results that keep a GPU busy, at 128 x 128 per core
WRITING = (
    "index_add", "index_put", "index_copy", "index_fill", "scatter", "slice_scatter", "select_scatter", "masked_scatter",
)  # fmt: skip
_bmm = torch.ops.aten.bmm.default
_reshape = torch.ops.aten.reshape.default


def parts_of_sum(rows: int, terms: int, columns: int) -> int:
    """Return into how many equal parts the sums of a (rows x terms) by (terms x columns) product are cut.

    >>> parts_of_sum(64, 51200, 27), parts_of_sum(64, 1024, 27), parts_of_sum(4096, 51200, 4096)
    (50, 1, 1)
    """
    if terms < LONG or rows * columns > FEW:
        return 1
    return max(number for number in range(1, terms // LEAST + 1) if terms % number == 0)


def cut_long_sums(graph: GraphModule) -> int:
    """Cut the long sums of a graph's batched products; return the number of products changed."""
    changed = 0
    for node in graph.graph.find_nodes(op="call_function", target=_bmm):
        left, right = (operand.meta.get("val") for operand in node.args)
        if left is None or right is None:
            continue
        trials, rows, terms = left.shape
        columns = right.shape[-1]
        number = parts_of_sum(rows, terms, columns)
        if number > 1:
            _cut(graph, node, (trials, number, rows, terms // number, columns))
            changed += 1
    if changed:
        graph.recompile()
    return changed


def _cut(graph: GraphModule, node: Node, shape: tuple[int, int, int, int, int]) -> None:
    trials, number, rows, terms, columns = shape
    call = graph.graph.call_function
    with graph.graph.inserting_before(node):
        left = call(_reshape, (node.args[0], [trials, rows, number, terms]))
        left = call(torch.ops.aten.permute.default, (left, [0, 2, 1, 3]))
        left = call(_reshape, (left, [trials * number, rows, terms]))
        right = call(_reshape, (node.args[1], [trials * number, terms, columns]))
        product = call(_reshape, (call(_bmm, (left, right)), [trials, number, rows, columns]))
        total = call(torch.ops.aten.sum.dim_IntList, (product, [1]))
    node.replace_all_uses_with(total)
    graph.graph.erase_node(node)


def copy_before_writing(graph: GraphModule) -> None:
    """Copy tensors with stride 0 before operations that write into them.

    Under vmap such a tensor may be one row shared by all lanes. Eager torch copies it first; inductor (torch 2.11 and 2.13) adds
    the writes of all lanes into that row, and every lane reads the sum.
    """
    for node in list(graph.graph.nodes):
        name = getattr(node.target, "__name__", "").removeprefix("aten.").split(".")[0].rstrip("_")
        if node.op != "call_function" or name not in WRITING:
            continue
        value = node.args[0].meta.get("val")
        if value is None or 0 in [step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1]:
            with graph.graph.inserting_before(node):
                copy = graph.graph.call_function(
                    torch.ops.aten.clone.default, (node.args[0],), {"memory_format": torch.contiguous_format}
                )
            node.args = (copy, *node.args[1:])
