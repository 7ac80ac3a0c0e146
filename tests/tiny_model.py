"""A tiny random model directory for tests: real transformers architecture, word-level tokenizer, no download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|pad|>", "<|unk|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|call|>", "<|end|>")
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
_SENTENCE = (
    "what is plus minus times reverse first last two letters of largest smallest how old will be in years the sum"
    " ages and calc lookup double"
)
WORDS = tuple(_SENTENCE.split(" "))
CHAT_TEMPLATE = (
    "{%- for m in messages -%}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def default_vocab() -> tuple[str, ...]:
    """Special tokens, every printable ASCII character and the words with and without a space before them."""
    words = [*WORDS, *(" " + word for word in WORDS)]
    return (*SPECIAL_TOKENS, *CHARACTERS, *words)


def make_tokenizer(directory: Path, vocab: Sequence[str] | None = None) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template into `directory`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = default_vocab() if vocab is None else tuple(vocab)
    words = [token for token in tokens if len(token) > 1 and token not in SPECIAL_TOKENS]
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    alternatives = "|".join(f"{word}(?![a-z])" for word in longest_first)
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<|unk|>"))
    pattern = Regex(rf"{alternatives}|[\s\S]" if alternatives else r"[\s\S]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|call|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(str(directory))


def _config(architecture: str, num_tokens: int, end_id: int, *, untied: bool, max_length: int) -> Any:
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    classes = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    num_kv_heads = 4 if architecture == "llama" else 2  # the others exercise grouped-query attention
    extra = {"head_dim": 16} if architecture == "qwen3" else {}
    return classes[architecture](
        vocab_size=num_tokens,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=max_length,
        initializer_range=64**-0.5,
        tie_word_embeddings=not untied,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=0,
        **extra,
    )


def make_tiny_model(
    directory: Path,
    seed: int = 0,
    vocab: Sequence[str] | None = None,
    untied: bool = False,
    architecture: str = "llama",
    max_length: int = 256,
    weights: bool = True,
) -> Path:
    """Write a random model of about 120,000 parameters (d 64, 2 layers) with tokenizer; returns `directory`.

    `weights=False` writes config and tokenizer only. The same arguments give the same weights.
    """
    import torch
    from transformers import AutoModelForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    tokens = default_vocab() if vocab is None else tuple(vocab)
    make_tokenizer(directory, tokens)
    config = _config(architecture, len(tokens), tokens.index("<|end|>"), untied=untied, max_length=max_length)
    if not weights:
        config.save_pretrained(str(directory))
        return directory
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.float().save_pretrained(str(directory))
    return directory
