"""The Hugging Face tokenizer: template, ids, end tokens, and what a broken directory says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ptctl.engines.tokenizer import HuggingFaceTokenizer
from ptctl.errors import DataError, InputNotFound, MissingExtra, RowFailure
from ptctl.records import Message, Tool
from tiny_model import CHARACTERS, make_tokenizer

CALC = Tool(
    name="calc",
    description="Computes.",
    parameters_json='{"type": "object", "properties": {"expression": {"type": "string"}}}',
    kind="calculator",
    config_json='{"secret": 1}',
)
USER = Message(role="user", content="what is 1 plus 2?")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path)
    config = {"vocab_size": 200, "max_position_embeddings": 64, "eos_token_id": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def _template(directory: Path, template: str) -> HuggingFaceTokenizer:
    (directory / "chat_template.jinja").write_text(template)
    return HuggingFaceTokenizer(directory)


def test_text_and_ids(directory: Path) -> None:
    tokenizer = HuggingFaceTokenizer(directory)
    text = f"<|user|>what is the sum?\n {CHARACTERS}  whatever<|end|>"
    ids = tokenizer.encode(text)
    assert ids[0] == 3  # <|user|>
    assert ids[-1] == 7  # <|end|>
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("") == []
    assert tokenizer.decode([7, 0]) == "<|end|><|pad|>"


def test_ids_are_those_of_auto_tokenizer(directory: Path) -> None:
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(str(directory))
    tokenizer = HuggingFaceTokenizer(directory)
    messages = [USER, Message(role="assistant", content="3 \n")]
    text = tokenizer.render(messages, (), add_generation_prompt=True)
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    assert text == auto.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    assert tokenizer.encode(text) == auto.encode(text, add_special_tokens=False)


def test_render(directory: Path) -> None:
    tokenizer = HuggingFaceTokenizer(directory)
    messages = [USER, Message(role="assistant", content="answer \n"), Message(role="user", content=" again")]
    expected = "<|user|>what is 1 plus 2?<|end|><|assistant|>answer \n<|end|><|user|> again<|end|>"
    assert tokenizer.render(messages, (), add_generation_prompt=False) == expected
    assert tokenizer.render(messages, (), add_generation_prompt=True) == expected + "<|assistant|>"


def test_tools_and_tool_answers_reach_the_template(directory: Path) -> None:
    tokenizer = _template(directory, "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{% endfor %}")
    answer = Message(role="tool", content="3", name="calc", tool_call_id="c1")
    text = tokenizer.render([answer], [CALC], add_generation_prompt=False)
    decoder = json.JSONDecoder()
    tools, end = decoder.raw_decode(text)
    function = {
        "name": "calc",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    }
    assert tools == [{"type": "function", "function": function}]
    assert json.loads(text[end:]) == {"role": "tool", "content": "3", "name": "calc", "tool_call_id": "c1"}
    assert tokenizer.render([USER], (), add_generation_prompt=False).startswith("null{")


def test_end_tokens(directory: Path) -> None:
    assert HuggingFaceTokenizer(directory).stop_token_ids == {7}
    (directory / "generation_config.json").write_text('{"eos_token_id": [0, 4]}')
    tokenizer = HuggingFaceTokenizer(directory)
    assert tokenizer.stop_token_ids == {0, 4, 7}
    assert tokenizer.eos_token_id == 7
    assert tokenizer.vocab_size == 200


def test_the_template_says_which_end_token_closes_a_message(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [0, 4]}')
    template = "{% for m in messages %}<|user|>{{ m['content'] }}\n<|pad|>{% endfor %}"
    assert _template(directory, template).eos_token_id == 0
    assert _template(directory, "{% for m in messages %}{{ m['content'] }}{% endfor %}").eos_token_id == 7


def test_truncation_and_padding_of_tokenizer_json_are_ignored(directory: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|pad|>",
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(content))
    assert len(HuggingFaceTokenizer(directory).encode("0123456789")) == 10


def test_a_template_that_refuses_is_a_row_failure(directory: Path) -> None:
    tokenizer = _template(directory, "{{ raise_exception('no system role here') }}")
    with pytest.raises(RowFailure, match="no system role here") as caught:
        tokenizer.render([USER], (), add_generation_prompt=True)
    assert caught.value.kind == "engine"


def test_no_template(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    tokenizer = HuggingFaceTokenizer(directory)
    assert tokenizer.eos_token_id == 7
    with pytest.raises(DataError, match="no chat template"):
        tokenizer.render([USER], (), add_generation_prompt=True)


def test_a_directory_without_tokenizer_is_named(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=str(directory)):
        HuggingFaceTokenizer(directory)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(InputNotFound, match=r"tokenizer\.json is missing"):
        HuggingFaceTokenizer(directory)
    (directory / "config.json").unlink()
    with pytest.raises(InputNotFound, match=r"config\.json is missing"):
        HuggingFaceTokenizer(directory)


def test_no_end_token(directory: Path) -> None:
    (directory / "config.json").write_text('{"vocab_size": 200}')
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match="no end token"):
        HuggingFaceTokenizer(directory)


def test_without_transformers_the_extra_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match="transformers") as caught:
        HuggingFaceTokenizer(directory)
    assert caught.value.hint == "pip install 'ptctl[local]'"


def test_torch_is_not_imported(directory: Path) -> None:
    program = f"""
import sys
import ptctl.engines.local, ptctl.engines.oracle, ptctl.testing.fake_engine
assert "transformers" not in sys.modules
from pathlib import Path
from ptctl.engines.tokenizer import HuggingFaceTokenizer
from ptctl.records import Message
tokenizer = HuggingFaceTokenizer(Path({str(directory)!r}))
tokenizer.encode(tokenizer.render([Message(role="user", content="x")], (), add_generation_prompt=True))
assert "torch" not in sys.modules
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
