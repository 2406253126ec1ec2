"""Components of your own for leakscope: importing this package registers them."""

import leakscope
from leakscope.metrics import Direction, Metric
from leakscope_stripes.attack import ig_patterned
from leakscope_stripes.data import STRIPES
from leakscope_stripes.defence import ThinOut
from leakscope_stripes.metric import edge_error
from leakscope_stripes.model import small_conv

leakscope.register_attack("ig_patterned", ig_patterned)
leakscope.register_defence("thin_out", ThinOut)
leakscope.register_data("stripes", STRIPES)
leakscope.register_model("small_conv", small_conv)
leakscope.register_metric(Metric("edge_error", edge_error, Direction.LOWER, best=0.0, tables=False))
