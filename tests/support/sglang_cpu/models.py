"""Make a tiny Llama and an EAGLE-3 draft for it; run by SGLang's interpreter: `models.py FOLDER`.

Deterministic: the same versions give the same files. Both models only ever speak printable ASCII
and never stop by themselves, so that a stream shows its text token by token and a request is as
long as its `max_tokens` says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
HIDDEN = 128
INTERMEDIATE = 256
HEADS, KEY_VALUE_HEADS, HEAD_SIZE = 4, 2, 32
CONTEXT = 4096
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<pad>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"
)
SENTENCE = "hello world the quick brown fox jumps over the lazy dog"
# Spread of the logits of what may be said: large beside the 0 of what may not.
LOUDNESS = 1.0


def tokenizer(folder: Path) -> list[int]:
    """Write the tokenizer, and return the ids whose text is printable ASCII."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(
        [SENTENCE] * 10,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    texts = ((number, raw.decode([number])) for number in range(raw.get_vocab_size()))
    return [
        number
        for number, text in texts
        if number >= len(SPECIAL) and text and text.isascii() and text.isprintable()
    ]


def head(speakable: list[int], generator: torch.Generator) -> torch.Tensor:
    """Return output weights that can only choose among `speakable`."""
    weights = torch.zeros(VOCABULARY, HIDDEN)
    weights[speakable] = torch.randn(len(speakable), HIDDEN, generator=generator) * LOUDNESS
    return weights.bfloat16()


def target(folder: Path, speakable: list[int]) -> None:
    """Write a two-layer Llama with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT,
        bos_token_id=SPECIAL.index("<s>"),
        eos_token_id=SPECIAL.index("</s>"),
        pad_token_id=SPECIAL.index("<pad>"),
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.lm_head.weight.data = head(speakable, torch.Generator().manual_seed(2))
    model.save_pretrained(folder)
    # Greedy unless a request says otherwise: the CPU stand-ins verify drafts greedily only.
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 4, "temperature": 0.0})
    )


def draft(folder: Path, speakable: list[int]) -> None:
    """Write an EAGLE-3 draft with random weights; nothing it proposes is right, save by chance."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "draft_vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 4,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).bfloat16()

    def ones() -> torch.Tensor:
        return torch.ones(HIDDEN).bfloat16()

    layer = "midlayer."
    weights = {
        "fc.weight": random(HIDDEN, 3 * HIDDEN),
        layer + "self_attn.q_proj.weight": random(HEADS * HEAD_SIZE, 2 * HIDDEN),
        layer + "self_attn.k_proj.weight": random(KEY_VALUE_HEADS * HEAD_SIZE, 2 * HIDDEN),
        layer + "self_attn.v_proj.weight": random(KEY_VALUE_HEADS * HEAD_SIZE, 2 * HIDDEN),
        layer + "self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_SIZE),
        layer + "mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
        layer + "mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
        layer + "mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
        layer + "hidden_norm.weight": ones(),
        layer + "input_layernorm.weight": ones(),
        layer + "post_attention_layernorm.weight": ones(),
        "norm.weight": ones(),
        "lm_head.weight": head(speakable, generator),
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    }
    save_file(weights, str(folder / "model.safetensors"), {"format": "pt"})


def main(out: Path) -> None:
    """Write `target/` and `draft/` into the existing folder `out`."""
    (out / "target").mkdir()
    speakable = tokenizer(out / "target")
    target(out / "target", speakable)
    draft(out / "draft", speakable)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
