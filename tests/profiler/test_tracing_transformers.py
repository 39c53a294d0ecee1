"""Models of the transformers library, from configurations and without weights, as graphs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from oracle.layers import Attention, Linear  # noqa: E402
from oracle.model import ModelGraph  # noqa: E402
from profiler.tracing.factory import Factory  # noqa: E402
from profiler.tracing.trace import Traced, trace  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="the extra [transformers] is not installed: pip install 'stepgauge[transformers]'",
    ),
    pytest.mark.filterwarnings("default"),  # what the library and what it imports warn of is theirs
]

SMALL = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def tokens() -> Any:
    return torch.randint(1000, (3, 16))


def encoder() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**SMALL, intermediate_size=128)), {"input_ids": tokens(), "labels": tokens()}


def decoder() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SMALL, intermediate_size=128, num_key_value_heads=2)
    return LlamaForCausalLM(config), {"input_ids": tokens(), "labels": tokens()}


def tied_decoder() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 1000, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)), tokens()


def both() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 1000, "d_model": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4, "d_ff": 128}
    config = T5Config(**sizes, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config), {"input_ids": tokens(), "labels": tokens()}


def traced(make: Callable[[], Any]) -> Traced:
    return trace(Factory("hf.py:net", make))


@pytest.mark.parametrize("make", [encoder, decoder, tied_decoder, both], ids=lambda make: make.__name__)
def test_parameters_are_those_of_the_model_and_what_has_no_kind_is_named(make: Callable[[], Any]) -> None:
    found = traced(make)
    module, _ = make()
    assert found.graph.params == sum(param.numel() for param in module.parameters())
    assert ModelGraph.from_json(found.graph.to_json()) == found.graph
    assert found.notes[0].startswith("no layer kind for")


def test_an_encoder_has_its_attention_and_its_products() -> None:
    layers = [node.layer for node in traced(encoder).graph.nodes]
    assert layers.count(Attention(4, 16, 16, 16)) == 2
    # Queries, keys, values and what mixes them, of two blocks; the head's transformation.
    assert layers.count(Linear(64, 64, rows=16)) == 2 * 4 + 1
    assert layers.count(Linear(64, 1000, rows=16, tied=True)) == 1
    assert layers[-1].kind == "loss"


def test_keys_of_few_heads_are_expanded_to_all() -> None:
    graph = traced(decoder).graph
    attentions = [node for node in graph.nodes if isinstance(node.layer, Attention)]
    assert [node.layer for node in attentions] == [Attention(4, 16, 16, 16, causal=True)] * 2
