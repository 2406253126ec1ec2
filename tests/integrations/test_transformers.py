"""Models of `transformers` and adapters of `peft`, with random weights: their own losses' gradients give the sentences."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.exact.embedding_rows import bag_of_gradient
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading, span_test
from leakscope.attacks.tokens.token_attacks import tag
from leakscope.core.errors import InputError
from leakscope.core.types import Knowledge, Observation, Round, Shares
from leakscope.models import encode, from_module, is_transformer, read_transformer, token_model

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)
WORDS, LENGTH = 60, 5
SIZES = {
    "gpt2": {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": LENGTH, "eos_token_id": 0},
    "bert": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96},
    "distilbert": {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96},
    "llama": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 96, "eos_token_id": 0, "bos_token_id": 1},
}  # fmt: skip


def build(name: str, task: str = "SequenceClassification", *, train: bool = False) -> nn.Module:
    """Return a model with first weights, in float64 (Llama: float32, since its norms compute in it)."""
    longest = {} if name == "gpt2" else {"max_position_embeddings": LENGTH}
    config = transformers.AutoConfig.for_model(name, vocab_size=WORDS, pad_token_id=0, **longest, **SIZES[name])
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    return model.to(torch.float32 if name == "llama" else torch.float64).train(train)


def sentences(number: int = 3) -> tuple[Tensor, set[tuple[int, ...]]]:
    """Return sentences with padding 0 behind a short one, and the sentences without it."""
    x = torch.randint(1, WORDS, (number, LENGTH), generator=torch.Generator().manual_seed(1))
    if number > 1:
        x[1, 3:] = 0
    return x, {tuple(token for token in row if token) for row in x.tolist()}


def gradients(model: nn.Module, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the gradient of the model's own loss with its own mask."""
    model.zero_grad()
    model(input_ids=x, attention_mask=(x != 0).long(), labels=labels).loss.backward()
    return {f"network.{name}": w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


def read(model: nn.Module, sent: dict[str, Tensor]) -> SpanReading:
    module = token_model(copy.deepcopy(model))
    before = {name: value.detach() for name, value in module.named_parameters()}
    return span_test(module, Round(before, {}, sent), Shares.GRADIENT, vocabulary=WORDS, length=LENGTH)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_classifiers_gradient_gives_every_sentence_at_its_own_length(name: str) -> None:
    model, (x, truth) = build(name), sentences()
    reading = read(model, gradients(model, x, torch.arange(len(x)) % 2))
    assert reading.end is SpanEnd.SENTENCES
    assert set(reading.proved) == truth


@pytest.mark.parametrize(("name", "task"), [("gpt2", "CausalLM"), ("llama", "CausalLM"), ("bert", "MaskedLM")])
def test_a_language_models_gradient_gives_its_sentences(name: str, task: str) -> None:
    model, (x, truth) = build(name, task), sentences()
    reading = read(model, gradients(model, x, x.masked_fill(x == 0, -100)))
    assert set(reading.proved) == ({each[:-1] for each in truth} if task == "CausalLM" else truth)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_dropout_of_the_embedding_is_solved_for_and_that_of_attention_hides_the_sentences(name: str) -> None:
    model, (x, _) = build(name, train=True), sentences()
    sent = gradients(model, x, torch.arange(len(x)) % 2)
    reading = read(model, sent)
    assert reading.end is SpanEnd.MASKED_TOKENS
    places = [set(column) - {0} for column in x.T.tolist()]
    assert [set(tokens.tolist()) for tokens in reading.candidates] == places
    table = next(key for key in sent if key.endswith(("wte.weight", "word_embeddings.weight")))
    assert bag_of_gradient(sent[table]).tokens.tolist() == x[x != 0].unique().tolist()
    alone = read(model, gradients(model, x[:1], torch.zeros(1, dtype=torch.int64)))
    assert alone.sentences == (tuple(x[0].tolist()),)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_the_vmapped_search_over_embeddings_agrees_with_a_plain_loop(name: str) -> None:
    model, (x, _) = build(name), sentences(2)
    labels = torch.tensor([[1], [0]])
    sent = [gradients(model, row[None], label) for row, label in zip(x, labels, strict=True)]
    pure = from_module(token_model(copy.deepcopy(model)), input_shape=(LENGTH,), example=x.float())
    before = {key: value.expand(2, *value.shape).clone() for key, value in pure.parameters.items()}
    update = {key: torch.stack([each[key] for each in sent]) for key in before}
    buffers = {key: value.expand(2, *value.shape) for key, value in pure.buffers.items()}
    seen = Observation((Round(before, buffers, update),), Shares.GRADIENT, torch.ones(2, dtype=torch.int64))
    known = Knowledge((LENGTH,), 2, 1, labels=labels)
    one, other = (
        tag(iterations=3).run(pure, seen, known, [0, 1], Execution(form=form, dtype="float64"))
        for form in ("loop", "native")
    )
    torch.testing.assert_close(one.mismatch, other.mismatch, rtol=1e-4, atol=0)
    assert bool((one.mismatch < one.trace[:, 0]).all())
    assert 0 not in one.inputs


@pytest.mark.parametrize("name", sorted(SIZES))
@pytest.mark.parametrize("train", [False, True])
def test_the_pure_function_computes_what_the_model_computes(name: str, train: bool) -> None:
    from leakscope.core import random

    model, (x, _) = build(name, train=train), sentences()
    pure = from_module(token_model(copy.deepcopy(model)), input_shape=(LENGTH,), example=x.float())
    keys = random.key([0, 0, 1])
    weights = {key: value.expand(3, *value.shape) for key, value in pure.parameters.items()}
    outputs = torch.func.vmap(lambda w, key: pure.apply(w, pure.buffers, x.float(), key)[0])(weights, keys)
    drops = train and name != "llama"
    assert pure.draws is drops
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2]) is not drops
    if not drops:
        torch.testing.assert_close(outputs[0], model(input_ids=x, attention_mask=(x != 0).long()).logits)


def test_a_saved_directory_is_the_same_model(tmp_path: Path) -> None:
    model, (x, _) = build("gpt2"), sentences()
    model.save_pretrained(tmp_path)
    again = read_transformer(tmp_path).double().eval()
    assert type(again) is type(model)
    torch.testing.assert_close(token_model(again)(x), token_model(model)(x))


def test_a_directory_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    for content in (None, "{}", "[", '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError) as caught:
            read_transformer(tmp_path)
        assert "\n" not in str(caught.value)


def test_an_audit_takes_a_transformer_as_it_is() -> None:
    x, _ = sentences(8)
    made = leakscope.audit(
        build("gpt2").float(), "cross_entropy", x, torch.arange(8) % 2, examples=2, clients=2, progress=False
    )
    assert made.grade == "F"
    with pytest.raises(InputError):
        leakscope.audit(build("gpt2").float(), "cross_entropy", x.repeat(1, 2), torch.arange(8) % 2, progress=False)


def tokeniser(words: int, padding: str = "word0") -> object:
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"word{k}": k for k in range(words)}, "word1"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=padding)


def test_texts_become_padded_tokens() -> None:
    tokens = encode(tokeniser(WORDS), ["word5 word6", "word7"], build("gpt2"), length=3)
    assert tokens.tolist() == [[5, 6, 0], [7, 0, 0]]


def test_a_tokeniser_of_another_model_and_long_texts_are_refused_in_one_line() -> None:
    model = build("gpt2")
    for given, text in (
        (tokeniser(WORDS + 1), "word5"),
        (tokeniser(WORDS, "word3"), "word5"),
        (tokeniser(WORDS), "word5 " * 6),
        (tokeniser(WORDS), ""),
    ):
        with pytest.raises(InputError) as caught:
            encode(given, [text], model, length=LENGTH)
        assert "\n" not in str(caught.value)


def test_a_model_without_a_padding_token_names_that_of_its_tokeniser() -> None:
    model = build("gpt2")
    model.config.pad_token_id = None
    with pytest.raises(InputError, match=r"set config\.pad_token_id = 0"):
        encode(tokeniser(WORDS), ["word5", "word6 word7"], model, length=2)
    model.config.pad_token_id = 0
    assert encode(tokeniser(WORDS), ["word5"], model, length=2).tolist() == [[5, 0]]


def adapted(name: str = "gpt2", rank: int = 6) -> nn.Module:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=rank, task_type="SEQ_CLS", target_modules=["c_attn"] if name == "gpt2" else None)
    model: nn.Module = peft.get_peft_model(build(name), settings)
    return model.eval()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_adapters_of_peft_are_all_that_is_sent(name: str) -> None:
    x, _ = sentences()
    model = adapted(name)
    assert is_transformer(model)
    pure = from_module(token_model(model), input_shape=(LENGTH,), example=x.float())
    trained = {f"network.{key}" for key, value in model.named_parameters() if value.requires_grad}
    assert pure.parameters.keys() == trained
    assert all("lora_" in key or "modules_to_save" in key for key in trained)


def test_ten_steps_on_adapters_of_peft_give_the_sentence() -> None:
    x, truth = sentences(1)
    model = adapted()
    module = token_model(copy.deepcopy(model))
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    trained = {f"network.{name}": value for name, value in model.named_parameters() if value.requires_grad}
    sgd = torch.optim.SGD(trained.values(), lr=0.1)
    for _ in range(10):
        gradients(model, x, torch.zeros(1, dtype=torch.int64))
        sgd.step()
    seen = Round(before, {}, {name: value.detach() for name, value in trained.items()})
    reading = span_test(module, seen, Shares.WEIGHTS, vocabulary=WORDS, length=LENGTH, closest=1)
    assert reading.budget == 6
    assert set(reading.sentences) == truth
