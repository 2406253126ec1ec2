"""Matrix products with few results and long sums, cut into shorter sums that run side by side.

The gradient of a filter sums over all places of all pictures: 64 x 27 numbers, each a sum of 51,200 terms for 50 pictures of 32 x 32.
A GPU library gives a part of the results to each of its cores, which leaves most of them idle here. Cut in pieces of the sum the
product is a batched one, and the pieces are added afterwards.

How a sum is cut depends on the shapes of one trial alone, so a trial's bits do not depend on how many run beside it.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

LONG = 4096  # terms from which a sum is cut
LEAST = 1024  # terms left in a piece: shorter ones write more than they gain
FEW = 32 * 128 * 128  # results that keep a GPU busy by themselves, at 128 x 128 for one of its cores
_bmm = torch.ops.aten.bmm.default
_reshape = torch.ops.aten.reshape.default


def pieces(rows: int, terms: int, columns: int) -> int:
    """Return into how many equal pieces the sums of a (rows x terms) by (terms x columns) product are cut; 1 leaves them whole.

    >>> pieces(64, 51200, 27), pieces(64, 1024, 27), pieces(4096, 51200, 4096)
    (50, 1, 1)
    """
    if terms < LONG or rows * columns > FEW:
        return 1
    return max(number for number in range(1, terms // LEAST + 1) if terms % number == 0)


def cut_long_sums(graph: GraphModule) -> int:
    """Cut the long sums of a traced graph's batched products; return how many products were changed."""
    changed = 0
    for node in graph.graph.find_nodes(op="call_function", target=_bmm):
        left, right = (operand.meta.get("val") for operand in node.args)
        if left is None or right is None:
            continue
        trials, rows, terms = left.shape
        columns = right.shape[-1]
        number = pieces(rows, terms, columns)
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
