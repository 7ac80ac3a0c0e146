"""The recipe: strict, every problem at once with its line, resolved values that parse back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptctl.errors import InputNotFound, UsageError
from ptctl.recipe import load_recipe
from ptctl.recipe.lines import key_lines, line_of
from ptctl.recipe.load import section_keys
from ptctl.recipe.show import print_config, toml_value

PHASES = """
[train]
epochs = 2
[[phases]]
name = "sft"
steps = 1
[phases.train]
algorithm = "sft"
epochs = 7
[[phases]]
name = "rl"
steps = 3
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_every_problem_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    text = '[run]\nnam = "x"\n\n[train]\nlearning_rat = 3\nepochs = "a"\n'
    text += '[[phases]]\nname = "rl"\nsteps = 1\n[phases.train]\nepoch = 3\n'
    with pytest.raises(UsageError) as caught:
        load_recipe(written(tmp_path, text), ["train.clip_lw=0.1"])
    message = str(caught.value)
    assert message.startswith("5 problems in ")
    for part in (
        "recipe.toml:2: unknown key 'run.nam', did you mean 'name'?",
        "recipe.toml:5: unknown key 'train.learning_rat', did you mean 'learning_rate'?",
        "recipe.toml:6: train.epochs: Input should be a valid integer",
        "--set: unknown key 'train.clip_lw', did you mean 'clip_low'?",
        "recipe.toml:11: unknown key 'phases.0.train.epoch', did you mean 'epochs'?",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[train]\nrows_per_step = 8\nsteps_per_epoch = 2\n", "exclude each other"),
        ('[train]\nnormalisation = "dr_grpo"\n', "constant_length"),
        ("[train]\nconstant_length = 8.0\n", "constant_length"),
        ('[train]\ndecay = "cosine"\n', "decay_steps"),
        ("[train]\nlearning_rate = 0\n", "greater than 0"),
        ("[sample]\ngroup_size = 1\n[[phases]]\nname = 'rl'\nsteps = 1\n", "group_size of at least 2"),
        ("[[phases]]\nname = 'a'\nsteps = 1\n[[phases]]\nname = 'a'\nsteps = 1\n", "stands twice"),
        ("[run\n", "recipe.toml"),
        ("[rollout]\nengine = 3\n", "recipe.toml:2: rollout.engine"),
    ],
)
def test_contradictions_are_usage_errors(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        load_recipe(written(tmp_path, text))


def test_precedence_is_default_file_phase_set(tmp_path: Path) -> None:
    path = written(tmp_path, PHASES)
    recipe = load_recipe(path)
    assert [recipe.for_phase(name).train.epochs for name in ("sft", "rl", None)] == [7, 2, 2]
    assert recipe.for_phase("sft").train.algorithm == "sft"
    assert recipe.for_phase("sft").train.clip_low == 0.2
    everywhere = load_recipe(path, ["train.epochs=1"])
    assert [everywhere.for_phase(name).train.epochs for name in ("sft", "rl")] == [1, 1]
    assert load_recipe(path, ["rollout.engine=oracle"]).values.rollout.engine == "oracle"
    with pytest.raises(UsageError, match="no phase 'x'"):
        recipe.for_phase("x")
    with pytest.raises(UsageError, match=r"not section\.key=value"):
        load_recipe(path, ["epochs"])
    with pytest.raises(InputNotFound):
        load_recipe(tmp_path / "none.toml")


def test_the_digest_follows_the_values_and_not_the_file(tmp_path: Path) -> None:
    first = load_recipe(written(tmp_path, PHASES)).digest
    assert load_recipe(written(tmp_path, "# a comment\n" + PHASES)).digest == first
    assert load_recipe(written(tmp_path, PHASES), ["run.seed=1"]).digest != first


def test_print_config_tells_origins_and_parses_back(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, PHASES), ["train.clip_low=0.1", 'run.name="a \\"b\\" \\u007f"'])
    text = print_config(recipe)
    assert "clip_low = 0.1  # --set" in text
    assert f"epochs = 2  # {recipe.file}:3" in text
    assert "clip_high = 0.2  # default" in text
    back = tmp_path / "back.toml"
    back.write_text(text)
    assert load_recipe(back).values == recipe.values


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_string_is_a_toml_value(text: str) -> None:
    import tomllib

    assert tomllib.loads(f"v = {toml_value(text)}")["v"] == text


def test_lines_of_nested_keys() -> None:
    lines = key_lines(PHASES)
    assert line_of(lines, ("phases", 0, "train", "epochs")) == 9
    assert line_of(lines, ("phases", 1, "steps")) == 12
    assert line_of(lines, ("phases", 1, "train", "x")) == 10
    assert line_of(lines, ("nowhere",)) is None


def test_every_key_is_described() -> None:
    for section, keys in section_keys().items():
        for name, field in keys.items():
            assert field.description, f"{section}.{name}"
