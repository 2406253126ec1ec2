"""The papers' networks, and any `nn.Module`, as pure functions of their parameters."""

from leakscope.models.settings import ACTIVATIONS as ACTIVATIONS
from leakscope.models.adapter import (
    Functional as Functional, from_module as from_module, unfrozen as unfrozen,
)  # fmt: skip
from leakscope.models.batch_norm import in_eval_mode as in_eval_mode, in_train_mode as in_train_mode
from leakscope.models.catalogue import (
    MODELS as MODELS,
    TEXT_MODELS as TEXT_MODELS,
    build as build,
    build_module as build_module,
)
from leakscope.models.checkpoint import Checkpoint as Checkpoint, read_checkpoint as read_checkpoint
from leakscope.models.dropout import KeyedDropout as KeyedDropout
from leakscope.models.features import features_of as features_of
from leakscope.models.initialise import (
    INITS as INITS, Given as Given, Init as Init, Kaiming as Kaiming, Lecun as Lecun, Torch as Torch,
    Transformer as Transformer, Uniform as Uniform, draw_parameters as draw_parameters, torch_bounds as torch_bounds,
)  # fmt: skip
from leakscope.models.low_rank import LowRank as LowRank, adapt as adapt
from leakscope.models.structure import Layer as Layer, Structure as Structure, find_structure as find_structure
from leakscope.models.token_model import (
    TokensFromNumbers as TokensFromNumbers, encode as encode, is_transformer as is_transformer,
    read_transformer as read_transformer, token_model as token_model,
)  # fmt: skip
from leakscope.models.transformer_text import TextTransformer as TextTransformer, bert as bert, gpt as gpt
from leakscope.models.vmapping import Lack as Lack, Shortfall as Shortfall, find_shortfall as find_shortfall
