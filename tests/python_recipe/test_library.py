"""The recipes that come with keepstep."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from recipes import keepstep_recipe, load

from keepstep.recipe import library
from keepstep.recipe.rendering import render, scalar
from keepstep.recipe.settings import Recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", library.names())
def test_every_recipe_is_right_and_the_same_once_written_and_read(tmp_path, name):
    recipe = library.load(name)
    assert load(tmp_path, render(recipe)) == recipe
    assert recipe.model.source and recipe.model.parameters > 0
    assert recipe.out == f"out/{name}"
    assert library.script_of(recipe).is_file()


def test_every_family_has_all_kinds_and_a_tiny_model():
    for family in ("llama3", "gpt-oss", "qwen3", "deepseek"):
        assert library.kinds_of(f"{family}-tiny") == ["pretrain", "continue", "finetune", "lora", "dpo"]
        assert len([model for model in library.models() if model.startswith(family)]) >= 3


def test_other_readers_of_yaml_see_the_same_values():
    for name in library.names():
        recipe = library.load(name)
        read = yaml.safe_load(render(recipe))
        whole = dataclasses.asdict(recipe)
        for section, values in read.items():
            for key, value in values.items() if isinstance(values, dict) else ():
                assert whole[section][key] == value, (name, section, key)


@pytest.mark.parametrize(
    "value", ["", "no", "a: b", "x # y", "1", "1e-4", "<|end|>", "null", "-", "[", 'quo"te', "a b"]
)
def test_any_text_stays_a_text(tmp_path, value):
    recipe = load(tmp_path, f"recipe: llama3-tiny/lora\nmodel: {{source: {scalar(value)}}}\n")
    assert recipe.model.source == value


def test_later_values_win_and_shapes_are_merged(tmp_path):
    text = "recipe: llama3-tiny/lora\nmodel: {shape: {num_hidden_layers: 5}}\ntrain: {learning_rate: 1e-3}\nout: mine\n"
    recipe = load(tmp_path, text, "train.steps=7", "train.steps=9", "model.shape.num_hidden_layers=6")
    assert (recipe.train.steps, recipe.out, recipe.train.learning_rate) == (9, "mine", 1e-3)
    assert recipe.model.shape["num_hidden_layers"] == 6 and recipe.model.shape["vocab_size"] == 260


def test_another_architecture_has_a_shape_of_its_own(tmp_path):
    text = "recipe: llama3-tiny/lora\nmodel: {type: qwen3, shape: {vocab_size: 300}}\n"
    assert load(tmp_path, text).model.shape == {"vocab_size": 300}


def test_list_names_every_model_and_says_what_was_run(tmp_path):
    done = keepstep_recipe(tmp_path, "list")
    assert done.returncode == 0
    for model in library.models():
        (line,) = (each for each in done.stdout.splitlines() if each.startswith(f"{model} "))
        states = {"tested"} if model.endswith("-tiny") else {"plan", "untried"}
        assert set(line.split()[-5:]) <= states


def test_show_prints_the_recipe_and_its_script(tmp_path):
    done = keepstep_recipe(tmp_path, "show", "qwen3-8b/dpo", "train.steps=77")
    assert done.returncode == 0
    assert "  steps: 77 " in done.stdout and "@keepstep.recoverable" in done.stdout
    assert "# how closely the model stays to the one it began as" in done.stdout


def test_show_copies_a_recipe_and_overwrites_nothing(tmp_path):
    assert keepstep_recipe(tmp_path, "show", "qwen3-8b/dpo", "--to", "mine").returncode == 0
    assert library.load("", tmp_path / "mine" / "recipe.yaml").script == "dpo.py"
    again = keepstep_recipe(tmp_path, "show", "qwen3-8b/dpo", "--to", "mine")
    assert again.returncode == 2 and "dpo.py, parts.py, recipe.yaml would be overwritten" in again.stderr


def test_the_reference_page_has_every_key():
    """docs/reference/recipe.md: one row for each key, with its default and meaning."""
    page = (ROOT / "docs" / "reference" / "recipe.md").read_text()
    for section in dataclasses.fields(Recipe):
        keys = dataclasses.fields(section.default_factory) if section.default is dataclasses.MISSING else [section]
        for key in keys:
            name = key.name if key is section else f"{section.name}.{key.name}"
            default = key.default if key.default is not dataclasses.MISSING else key.default_factory()
            shown = "" if default in ("", [], {}) else f"`{scalar(default)}` "
            row = f"| `{name}` | {shown}| {key.metadata['says']} |"
            assert row in page, row
