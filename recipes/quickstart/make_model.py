"""Write the tiny model of the quickstart: its configuration and its tokenizer, without weights.

    python recipes/quickstart/make_model.py [DIRECTORY]         (default: model/ beside this file)

What it writes is committed, so that nobody needs to run it; training starts from random weights of this shape. It
needs transformers 5 and tokenizers. The model is a Llama of 113,600 parameters, small enough to be trained on a CPU in
a minute.

Two choices matter. The vocabulary has one token a character and one a word of the tasks, so that nothing else has to be
learned about spelling. And `initializer_range` is d ** -0.5: with the usual 0.02 and tied embeddings the logits of so
narrow a model start near 0 and it does not learn.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded here

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

PAD, UNKNOWN, END = "<|pad|>", "<|unk|>", "<|end|>"
ROLES = ["<|user|>", "<|assistant|>", "<|tool|>"]
CALL = "<|call|>"
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ+-*/=()?,. "
WORDS = [
    "what", "is", "plus", "minus", "times", "reverse", "first", "last", "two", "letters", "of", "largest", "smallest",
    "how", "old", "will", "be", "in", "years", "the", "sum", "ages", "and", "calc", "lookup", "double",
]  # fmt: skip

HIDDEN_SIZE = 64
CONTEXT_LENGTH = 128

# A call is part of the assistant's text (`<|call|>calc(12+34)`), and the tools are not described: the vocabulary could
# not spell the description. A role that the model was never shown is an error, not a guess.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] in ('user', 'assistant', 'tool') %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ raise_exception('no such role: ' + message['role']) }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a word-level tokenizer: a word with its leading space, a word, or a single character. Decoding is exact."""
    tokens = [PAD, UNKNOWN, *ROLES, CALL, END, *CHARACTERS, *WORDS, *(" " + word for word in WORDS)]
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[a-z]+|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        extra_special_tokens=[*ROLES, CALL],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Build the configuration of a two-layer Llama over that vocabulary."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=3 * HIDDEN_SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=HIDDEN_SIZE**-0.5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def main(directory: Path) -> None:
    """Write config.json, generation_config.json and the tokenizer's files into `directory`."""
    tokenizer = build_tokenizer()
    build_config(tokenizer).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    ).save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("model"))
