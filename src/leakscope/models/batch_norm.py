"""A network in train mode or in eval mode."""

from __future__ import annotations

import copy
from dataclasses import replace

from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.models.adapter import Functional
from leakscope.models.counting_norm import count_real_examples
from leakscope.models.dropout import replace_dropout


def in_train_mode(model: Model) -> Model:
    """Return the network with batch norm and dropout in train mode, for one client or for many under vmap; names are unchanged."""
    if not isinstance(model.apply, Functional):
        raise InputError(f"train mode needs the layers of {model.name}: use a Model straight from from_module")
    network = copy.deepcopy(model.apply.module).train()
    replace_dropout(network)
    count_real_examples(network)
    return replace(model, apply=Functional(network))


def in_eval_mode(model: Model) -> Model:
    """Return the network in eval mode: batch norm by its running statistics, no dropout."""
    if not isinstance(model.apply, Functional):
        return model
    return replace(model, apply=Functional(copy.deepcopy(model.apply.module).eval()))
