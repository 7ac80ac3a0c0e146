"""The tokenizer and chat template of a Hugging Face directory, without importing torch.

`AutoTokenizer` imports torch (3.5 CPU seconds against 0.9 here) and, for classes such as `GPT2Tokenizer`, rebuilds the
tokenizer from vocabulary and merges, which loses the pre-tokenizer of `tokenizer.json`. So where there is a
`tokenizer.json` it is taken as it is, through transformers' own generic class, and the template goes through
transformers' own renderer; `AutoTokenizer` is asked only for directories with older files (sentencepiece models,
vocabulary and merges).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptctl.engines.model_directory import ModelDirectory, read_model_directory
from ptctl.errors import DataError, InputNotFound, MissingExtra, RowFailure
from ptctl.records import Message, Role, Tool

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
"""A directory with none of these has no tokenizer."""

_MARKER = "ptctl-end-of-turn-marker"


class HuggingFaceTokenizer:
    """Implements `ptctl.protocols.Tokenizer` for a policy or model directory.

    Raises InputNotFound where the directory is no model directory or has no tokenizer, DataError where its tokenizer
    cannot be loaded or has no end token, MissingExtra where transformers is not installed.
    """

    vocab_size: int
    """Ids in [0, vocab_size) can be fed to the model, whose embedding may have rows for which there is no token."""
    stop_token_ids: frozenset[int]
    """Ids that end an assistant message: the tokenizer's end token and those of the generation config."""
    eos_token_id: int
    """The id that an oracle ends a message with: what the chat template puts after it, where that is a stop id."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._model = read_model_directory(directory)
        if not any((directory / name).is_file() for name in TOKENIZER_FILES):
            raise InputNotFound(
                f"{directory} has no tokenizer: {TOKENIZER_FILES[0]} is missing",
                hint="copy the tokenizer files of the model into the directory",
            )
        self._tokenizer = _load(directory)
        backend = self._tokenizer.backend_tokenizer
        # What a tokenizer.json may ask for: ptctl never cuts and never pads.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocab_size = self._model.vocab_size or len(self._tokenizer)
        self.stop_token_ids = _stop_token_ids(self._tokenizer, self._model)
        self.eos_token_id = self._end_of_turn_id()

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], *, add_generation_prompt: bool) -> str:
        """Apply the chat template. Tools are passed as OpenAI function schemas, and not at all where there are none.

        Raises DataError where the directory has no template, RowFailure where the template refuses these messages.
        """
        from jinja2.exceptions import TemplateError

        if not self._tokenizer.chat_template:
            raise DataError(
                f"{self._directory} has no chat template",
                hint="add chat_template.jinja, or chat_template to tokenizer_config.json",
            )
        try:
            return self._tokenizer.apply_chat_template(
                [_message(message) for message in messages],
                tools=[_schema(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except TemplateError as error:
            raise RowFailure(
                f"the chat template of {self._directory} refuses the messages: {error}", kind="engine"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Ids of `text`: special tokens are recognised, none is added."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens kept and spaces as they are."""
        return self._backend.decode(list(token_ids), skip_special_tokens=False)

    def _end_of_turn_id(self) -> int:
        fallback = self._tokenizer.eos_token_id
        if self._tokenizer.chat_template:
            exchange = [Message(role=Role.USER, content="?"), Message(role=Role.ASSISTANT, content=_MARKER)]
            try:
                text = self.render(exchange, (), add_generation_prompt=False)
            except RowFailure:
                text = ""  # a template for other conversations; the tokenizer's own end token is what is left
            after = self.encode(text.rpartition(_MARKER)[2])
            found = [token_id for token_id in after if token_id in self.stop_token_ids]
            if found:
                return found[0]
        return fallback if fallback is not None else min(self.stop_token_ids)


def _load(directory: Path) -> Any:
    try:
        from transformers import PreTrainedTokenizerFast
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"a tokenizer needs {error.name}, which is not installed", hint="pip install 'ptctl[local]'"
        ) from error
    logging.set_verbosity_error()  # it would warn that another class than the declared one is used
    loader: Any = PreTrainedTokenizerFast
    if not (directory / "tokenizer.json").is_file():
        from transformers import AutoTokenizer

        loader = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # the Rust loader raises bare Exception for a file that it cannot read
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"cannot load the tokenizer of {directory}: {reason}",
            hint="copy the tokenizer files of the model into the directory again",
        ) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise DataError(f"{directory} has a tokenizer without a fast implementation", hint="save it as tokenizer.json")
    return tokenizer


def _stop_token_ids(tokenizer: Any, model: ModelDirectory) -> frozenset[int]:
    own = tokenizer.eos_token_id
    ids = model.eos_token_ids if own is None else model.eos_token_ids | {int(own)}
    if not ids:
        raise DataError(
            f"{model.path} names no end token, so no message would ever end",
            hint="set eos_token in tokenizer_config.json or eos_token_id in generation_config.json",
        )
    return ids


def _message(message: Message) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _schema(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters_json)}
    return {"type": "function", "function": function}
