"""Networks over token numbers as functions of one tensor: own modules, and any model of `transformers` (also inside `peft`).

A model of `transformers` takes tokens and a mask and returns a record. `TransformerLogits` gives it the mask of all tokens that are not
its padding token, and returns the logits. Attention runs in its plain form: fused ones have no second derivative and draw their dropout
from torch's global generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from leakscope.core.errors import InputError, first_line
from leakscope.models.dropout import KeyedDropout, KeyedFunctions

EXTRA = "needs the extra `transformers`: pip install leakscope[transformers]"


class _Settings(Protocol):
    """What is read of a `transformers` configuration."""

    def get_text_config(self) -> _Settings: ...
    def to_dict(self) -> dict[str, object]: ...


class TokensFromNumbers(nn.Module):
    """A token network whose inputs are tokens as floating numbers, the form in which clients hold their data."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        output: Tensor = self.network(x.long())
        return output


class TransformerLogits(nn.Module):
    """A model of `transformers` from N x T tokens, whole or floating numbers, to its logits; tokens equal to `padding` are masked."""

    def __init__(self, network: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.network, self.padding = network, padding
        self.causal = any(getattr(layer, "is_causal", False) for layer in network.modules())
        settings = cast(_Settings, network.config).get_text_config().to_dict()
        self.limit = settings.get("max_position_embeddings", settings.get("n_positions"))
        if any("drop" in name and isinstance(rate, float) and rate > 0 for name, rate in settings.items()):
            self.drops = KeyedDropout(0.0).train(network.training)  # marks that the network draws
        self.training = network.training

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, or the last hidden states of a model without a head."""
        tokens = x.long()
        if isinstance(self.limit, int) and tokens.shape[1] > self.limit:
            raise IndexError(f"{tokens.shape[1]} tokens are more than the {self.limit} positions")
        with KeyedFunctions():
            output = self.network(input_ids=tokens, attention_mask=self._mask(tokens))
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        return logits

    def _mask(self, tokens: Tensor) -> Tensor:
        """Return which tokens are real; for an encoder the number added to attention's scores, since a mask is tested for its values."""
        real = torch.ones_like(tokens) if self.padding is None else (tokens != self.padding).long()
        if self.causal:
            return real
        kind = next(self.network.parameters()).dtype
        return ((1 - real).to(kind) * torch.finfo(kind).min)[:, None, None]


def is_transformer(module: nn.Module) -> bool:
    """Return whether a module is a model of `transformers`, or one that `peft` wraps."""
    return hasattr(getattr(module, "config", None), "get_text_config") and hasattr(module, "get_input_embeddings")


def token_model(module: nn.Module) -> nn.Module:
    """Return a network over tokens as a module of one tensor, N x T numbers; a model of `transformers` is changed to plain attention."""
    if isinstance(module, TokensFromNumbers | TransformerLogits):
        return module
    if not is_transformer(module):
        return TokensFromNumbers(module)
    for layer in module.modules():
        change: object = getattr(layer, "set_attn_implementation", None)
        if callable(change) and not hasattr(layer, "peft_config"):  # the model inside peft's wrappers
            try:
                change("eager")
            except ValueError as problem:
                raise InputError(f"{type(layer).__name__} has no plain attention: {first_line(problem)}") from None
            break
    settings = cast(_Settings, module.config).get_text_config().to_dict()
    padding = settings.get("pad_token_id")
    return TransformerLogits(module, padding if isinstance(padding, int) else None)


class Tokeniser(Protocol):
    """What is used of a tokeniser of `transformers`; wrap one of `tokenizers` in its `PreTrainedTokenizerFast`."""

    pad_token_id: int | None

    def __len__(self) -> int: ...
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...


def encode(tokeniser: Tokeniser, texts: Sequence[str], module: nn.Module, *, length: int) -> Tensor:
    """Return the tokens of texts for a model of `transformers`, N x length, filled up with its padding token."""
    settings = cast(_Settings, module.config).get_text_config().to_dict()
    rows, padding = settings["vocab_size"], settings.get("pad_token_id")
    if padding is None and tokeniser.pad_token_id is not None and isinstance(rows, int) and len(tokeniser) <= rows:
        raise InputError(
            f"the model names no padding token, so it would read padding as words: set config.pad_token_id = {tokeniser.pad_token_id}, "
            "that of the tokeniser"
        )
    if not isinstance(rows, int) or len(tokeniser) > rows or tokeniser.pad_token_id != padding:
        raise InputError(
            f"the tokeniser is of another model: it has {len(tokeniser)} tokens and padding {tokeniser.pad_token_id}, "
            f"the model {rows} and {padding}"
        )
    tokens = [tokeniser.encode(text) for text in texts]
    longest = max(map(len, tokens), default=0)
    if longest > length or not all(tokens):
        raise InputError(f"texts must have 1 to {length} tokens, got {min(map(len, tokens), default=0)} to {longest}")
    if not isinstance(padding, int):
        if any(len(each) < length for each in tokens):
            raise InputError(f"the model has no padding token, so every text must have {length} tokens")
        padding = 0
    return torch.tensor([each + [padding] * (length - len(each)) for each in tokens])


def read_transformer(directory: str | Path) -> nn.Module:
    """Return the model in a directory that `save_pretrained` wrote, of the class its configuration names; only safetensors are read."""
    try:
        import transformers
    except ImportError:
        raise InputError(f"a saved transformer {EXTRA}") from None
    path = Path(directory)
    if not (path / "config.json").is_file():
        raise InputError(f"{path} holds no config.json: name a directory that save_pretrained wrote")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
        module: nn.Module = kind.from_pretrained(path, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as problem:
        raise InputError(f"{path} cannot be read as a transformer: {first_line(problem)}") from None
    return module.train()
