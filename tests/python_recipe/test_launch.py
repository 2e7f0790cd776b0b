"""What `keepstep recipe run` starts, and what it misses before it starts anything."""

import importlib.util
import os
import shlex

import pytest
from recipes import keepstep_recipe

from keepstep.recipe import RecipeError, launch, library


@pytest.fixture(autouse=True)
def all_packages(monkeypatch, tmp_path):
    """As if transformers and peft were installed; in a folder of this test's own."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.chdir(tmp_path)


def prepared(name, *arguments, options=()):
    recipe = library.load(name, None, list(arguments))
    return launch.prepare(recipe, library.script_of(recipe), options)


def refused(name, *arguments):
    with pytest.raises(RecipeError) as caught:
        prepared(name, *arguments)
    return list(caught.value.mistakes)


def corpus(prefix):
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    for suffix in (".bin", ".idx"):
        open(prefix + suffix, "w").close()


def test_a_tiny_recipe_builds_a_sample_and_runs():
    found = prepared("llama3-tiny/pretrain", options=["--hang-timeout", "30"])
    out = "out/llama3-tiny/pretrain"
    assert shlex.join(found.build) == (
        f"keepstep data build --input {out}/sample.jsonl --out {out}/corpus --tokenizer bytes --append-eod"
    )
    assert shlex.join(found.run) == (
        f"keepstep run --nproc-per-node 2 --spares 1 --seed 0 --journal {out}/journal --hang-timeout 30 "
        f"{library.SCRIPTS / 'pretrain.py'} {out}/recipe.yaml"
    )


@pytest.mark.parametrize(
    ("kind", "command"),
    [("pretrain", "data build"), ("finetune", "data chat"), ("lora", "data chat"), ("dpo", "data chat --pairs")],
)
def test_each_kind_builds_its_own_corpus(kind, command):
    assert f"keepstep {command} --input" in shlex.join(prepared(f"qwen3-tiny/{kind}").build)


def test_a_corpus_that_is_there_is_not_built():
    corpus("mine/corpus")
    assert prepared("llama3-tiny/pretrain", "data.corpus=mine/corpus").build == []


def test_a_corpus_of_other_data_is_not_taken_for_this_one():
    recipe, command = library.load("llama3-tiny/lora"), prepared("llama3-tiny/lora").build
    corpus(recipe.corpus)
    launch.record(recipe, command)
    assert prepared("llama3-tiny/lora").build == []
    launch.record(recipe, [*command, "--eod", "7"])
    (complaint,) = refused("llama3-tiny/lora")
    assert complaint.startswith(
        "data: out/llama3-tiny/lora/corpus.bin was built by another command (keepstep data chat "
    )


def test_a_second_run_has_a_journal_of_its_own(tmp_path):
    (tmp_path / "here" / "journal").mkdir(parents=True)
    (tmp_path / "here" / "journal" / "journal.jsonl").touch()
    assert "--journal here/journal2 " in shlex.join(prepared("llama3-tiny/lora", "out=here").run)


def test_a_data_set_of_hugging_face_is_read_as_its_arrow_files(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").touch()
    found = prepared("llama3-tiny/pretrain", "data.input=[saved]", "data.field=story", "data.end_of_document=9")
    assert "--input 'saved/*.arrow' " in shlex.join(found.build)
    assert shlex.join(found.build).endswith("--append-eod --eod 9 --field story")
    (tmp_path / "both" / "train").mkdir(parents=True)
    for name in ("dataset_dict.json", "train/state.json"):
        (tmp_path / "both" / name).touch()
    assert "data.input: both has several data sets; choose one: both/train" in refused(
        "llama3-tiny/lora", "data.input=both"
    )


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["job.elastic=1"], "--ranks-per-replica 1 --min-replicas 1 --max-replicas 2"),
        (["job.nodes=3"], "--nnodes 3"),
        (["job.nodes=3", "job.elastic=2"], "--nnodes 2:3"),
        (["job.seed=5"], "--seed 5"),
    ],
)
def test_settings_become_options_of_the_launcher(arguments, options):
    corpus("corpus")
    found = prepared("llama3-tiny/lora", "data.corpus=corpus", "train.global_batch=16", *arguments)
    assert f" {options} " in shlex.join(found.run)


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("llama3-tiny/continue", [], "model.path: out/llama3-tiny/pretrain/model is no folder"),
        ("llama3-tiny/continue", [], "`keepstep recipe run llama3-tiny/pretrain` makes one"),
        ("llama3-tiny/lora", ["model.path=."], "model.path: . has no config.json"),
        ("llama3-tiny/lora", ["data.input=absent.jsonl"], "data.input: there is no absent.jsonl (seen from "),
        ("llama3-tiny/lora", ["data.input=[]"], "data.input: is missing; say what to build the corpus from"),
        ("llama3-tiny/dpo", ["data.input=[]", "data.corpus=x"], "data.corpus: there is no x.bin; say what to build"),
        ("llama3-tiny/dpo", ["data.input=[]", "data.corpus=x"], "`keepstep data chat --pairs`"),
        ("llama3-tiny/lora", ["data.tokenizer=absent.json"], "data.tokenizer: there is no file absent.json"),
        (
            "llama3-tiny/lora",
            ["job.nodes=2"],
            "With several nodes build it first, where all of them find it: keepstep data chat",
        ),
        ("llama3-tiny/lora", ["script=absent.py"], "script: there is no file absent.py"),
        ("llama3-8b/pretrain", [], "job.parallel: fsdp on GPUs is not possible yet"),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(name, arguments, complaint):
    assert any(complaint in mistake for mistake in refused(name, *arguments)), refused(name, *arguments)


def test_all_that_is_missing_is_said_at_once():
    assert len(refused("llama3-8b/continue")) == 3  # the weights, sharding on GPUs, the data


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else object())
    assert refused("llama3-tiny/lora") == ["peft: not installed; pip install 'keepstep[recipe]'"]
    assert prepared("llama3-tiny/finetune")


def test_nothing_is_written_before_a_mistake_or_by_a_dry_run(tmp_path):
    assert keepstep_recipe(tmp_path, "run", "llama3-tiny/lora", "--dry-run", "data.input=absent").returncode == 2
    assert list(tmp_path.iterdir()) == []
