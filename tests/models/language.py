"""Language and speech models, from ``transformers`` configurations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models.zoo import Model, model


class Picked(nn.Module):
    """A transformers model that returns the named fields of its output, as tensors."""

    def __init__(self, inner: nn.Module, *fields: str) -> None:
        super().__init__()
        self.inner = inner
        self.fields = fields

    def forward(self, **kwargs: Any) -> Any:
        """Return one tensor, or a tuple of them."""
        output = self.inner(**kwargs)
        found = tuple(getattr(output, name) for name in self.fields)
        return found[0] if len(found) == 1 else found


def _ids(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape)


@model("gpt2")
def gpt2(size: str) -> Model:
    """GPT-2: causal language modeling with its loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_head": 4, "n_embd": 128, "vocab_size": 503, "n_positions": 128}
    config = GPT2Config(**(small if size == "small" else {}), use_cache=False)
    ids = _ids(config.vocab_size, *((2, 48) if size == "small" else (8, 512)))
    inner = GPT2LMHeadModel(config)
    return Model(Picked(inner, "loss", "logits"), kwargs={"input_ids": ids, "labels": ids})


@model("bert")
def bert(size: str) -> Model:
    """BERT: masked language modeling, with a padding mask."""
    from transformers import BertConfig, BertForMaskedLM

    small = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 503,
        "max_position_embeddings": 128,
    }
    config = BertConfig(**(small if size == "small" else {}))
    shape = (2, 40) if size == "small" else (16, 512)
    ids, mask = _ids(config.vocab_size, *shape), torch.ones(shape, dtype=torch.int64)
    mask[0, shape[1] // 2 :] = 0
    inner = BertForMaskedLM(config)
    return Model(Picked(inner, "logits"), kwargs={"input_ids": ids, "attention_mask": mask})


@model("electra")
def electra(size: str) -> Model:
    """ELECTRA's discriminator: whether each token is the original one, with its loss."""
    from transformers import ElectraConfig, ElectraForPreTraining

    small = {
        "embedding_size": 64,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 503,
        "max_position_embeddings": 128,
    }
    base = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12}
    base |= {"intermediate_size": 3072}
    config = ElectraConfig(**(small if size == "small" else base))
    shape = (2, 40) if size == "small" else (16, 512)
    ids, labels = _ids(config.vocab_size, *shape), _ids(2, *shape)
    inner = ElectraForPreTraining(config)
    return Model(Picked(inner, "loss", "logits"), kwargs={"input_ids": ids, "labels": labels})


@model("llama")
def llama(size: str) -> Model:
    """Llama: RMS norm, rotary embedding, grouped-query attention, SwiGLU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 503,
        "max_position_embeddings": 256,
    }
    real = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8}
    real |= {"num_attention_heads": 16, "num_key_value_heads": 4}
    config = LlamaConfig(**(small if size == "small" else real), use_cache=False)
    ids = _ids(config.vocab_size, *((2, 40) if size == "small" else (4, 1024)))
    return Model(Picked(LlamaForCausalLM(config), "logits"), kwargs={"input_ids": ids})


@model("t5")
def t5(size: str) -> Model:
    """T5: encoder and decoder with relative position biases."""
    from transformers import T5Config, T5ForConditionalGeneration

    small = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    config = T5Config(
        **(small | {"vocab_size": 503} if size == "small" else {}),
        use_cache=False,
        decoder_start_token_id=0,
    )
    shape = (2, 24) if size == "small" else (8, 512)
    ids, labels = _ids(config.vocab_size, *shape), _ids(config.vocab_size, shape[0], shape[1] // 2)
    inner = T5ForConditionalGeneration(config)
    return Model(Picked(inner, "loss", "logits"), kwargs={"input_ids": ids, "labels": labels})


@model("whisper")
def whisper(size: str) -> Model:
    """Whisper: convolutions over a spectrogram, encoder and decoder."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    small = {
        "d_model": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "vocab_size": 503,
        "max_source_positions": 50,
        "max_target_positions": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
    }
    config = WhisperConfig(**(small if size == "small" else {}), use_cache=False)
    batch = 2 if size == "small" else 8
    features = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    labels = _ids(config.vocab_size, batch, 20 if size == "small" else 128)
    inner = WhisperForConditionalGeneration(config)
    return Model(Picked(inner, "logits"), kwargs={"input_features": features, "labels": labels})


@model("mixtral")
def mixtral(size: str) -> Model:
    """Mixtral-like: a mixture of experts, each token to two of them."""
    from transformers import MixtralConfig, MixtralForCausalLM

    small = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "vocab_size": 503,
        "max_position_embeddings": 128,
    }
    real = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4}
    real |= {"num_attention_heads": 16, "num_key_value_heads": 4}
    config = MixtralConfig(**(small if size == "small" else real), use_cache=False)
    ids = _ids(config.vocab_size, *((2, 24) if size == "small" else (4, 512)))
    inner = MixtralForCausalLM(config)
    return Model(Picked(inner, "logits"), kwargs={"input_ids": ids})


@model("qwen3_moe")
def qwen3_moe(size: str) -> Model:
    """Qwen3-like: a mixture of many small experts, each token to eight of them."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    small = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 503,
        "max_position_embeddings": 128,
    }
    real = {"hidden_size": 1024, "moe_intermediate_size": 384, "num_experts": 64}
    real |= {"num_experts_per_tok": 8, "num_hidden_layers": 4, "num_attention_heads": 16}
    real |= {"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000}
    config = Qwen3MoeConfig(**(small if size == "small" else real), use_cache=False)
    ids = _ids(config.vocab_size, *((2, 24) if size == "small" else (4, 512)))
    return Model(Picked(Qwen3MoeForCausalLM(config), "logits"), kwargs={"input_ids": ids})
