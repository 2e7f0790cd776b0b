"""A recipe with mistakes: exit code 2, nothing on standard output, and each mistake with its place."""

import subprocess
import sys

import pytest
from recipes import keepstep_recipe, load

from keepstep.recipe import RecipeError, library

LORA = "recipe: llama3-tiny/lora\n"


def mistakes(folder, text, *arguments):
    with pytest.raises(RecipeError) as caught:
        load(folder, text, *arguments)
    return [mistake.replace(str(folder / "my.yaml"), "my.yaml") for mistake in caught.value.mistakes]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("train: {steps: 5}\n", "my.yaml:1: recipe: is missing; say which recipe this one is based on"),
        ("recipe: qwen3-tniy/lora\n", "my.yaml:1: recipe: there is no recipe 'qwen3-tniy/lora'; did you mean qwen3"),
        ("recipe: llama3-tiny/sft\n", "llama3-tiny has pretrain, continue, finetune, lora, dpo"),
        (LORA + "train: {step: 5}\n", "my.yaml:2: train.step: there is no such key; did you mean train.steps?"),
        (LORA + "steps: 5\n", "my.yaml:2: steps: there is no such key; did you mean train.steps?"),
        (LORA + "job: {xyz: 5}\n", "my.yaml:2: job.xyz: there is no such key; job has device, nodes,"),
        (LORA + "train:\n  steps: many\n", "my.yaml:3: train.steps: 'many' is not a whole number"),
        (LORA + "train:\n  steps: 1.5\n", "my.yaml:3: train.steps: '1.5' is not a whole number"),
        (LORA + "train:\n  steps: '5'\n", "my.yaml:3: train.steps: '5' is not a whole number"),
        (LORA + "train:\n  steps: [5]\n", "my.yaml:3: train.steps: a whole number is needed, not a list"),
        (LORA + "train:\n  autocast: 1\n", "my.yaml:3: train.autocast: '1' is not true or false"),
        (LORA + "train:\n  steps: 0\n", "my.yaml:3: train.steps: is 0; it has to be at least 1"),
        (LORA + "train:\n  learning_rate: 0\n", "train.learning_rate: is 0; it has to be above 0"),
        (LORA + "lora:\n  dropout: 1\n", "lora.dropout: is 1; it has to be below 1"),
        (LORA + "job: {device: tpu}\n", "job.device: is tpu; it has to be one of cpu, cuda"),
        (LORA + "train: 5\n", "my.yaml:2: train: a map of keys is needed, such as train.steps"),
        (LORA + "train: {steps: 5, steps: 6}\n", "my.yaml:2: train.steps: is there already, in line 2"),
        (LORA + "dpo: {beta: 0.2}\n", "my.yaml:2: dpo: only recipes of dpo have it, not lora"),
        (LORA + "data: {field: text}\n", "data.field: only recipes of pretrain, continue have it, not lora"),
        (LORA + "data: {input: {a: b}}\n", "my.yaml:2: data.input: a list of texts is needed"),
        (LORA + "model: {shape: 5}\n", "my.yaml:2: model.shape: a map is needed"),
        (LORA + "lora: {rank: 0}\n", "my.yaml:2: lora.rank: is 0; to train the whole model, take the recipe finetune"),
        (LORA + "train:\n  micro_batch: 3\n", "my.yaml:3: train.micro_batch: is 3, which does not divide"),
        (LORA + "job: {ranks: 5}\n", "train.global_batch: is 8: 4 micro-batches of 2 for 5 ranks"),
        (LORA + "train: {steps: 3}\n", "train.warmup_steps: is 4, more than train.steps=3"),
        (LORA + "job: {elastic: 3}\n", "my.yaml:2: job.elastic: is 3, more than job.ranks=2"),
        ("a: [1\n", "my.yaml: line 2: this is no YAML"),
        ("- a\n", "my.yaml: has 0 maps of keys at its top"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_place(tmp_path, text, complaint):
    found = mistakes(tmp_path, text)
    assert len(found) == 1
    assert complaint in found[0]


def test_all_mistakes_are_listed_in_the_order_of_their_lines(tmp_path):
    text = LORA + "job:\n  rank: 4\ntrain:\n  steps: x\n  clip: -1\nmodle: {}\n"
    found = mistakes(tmp_path, text, "train.steps=y", "lora.rnk=5", "what")
    assert [each.split(": ")[0] for each in found] == [
        "my.yaml:3",
        "my.yaml:6",
        "my.yaml:7",
        "train.steps=y",
        "lora.rnk=5",
        "what",
    ]
    assert "did you mean job.ranks?" in found[0]
    assert "did you mean model?" in found[2]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("steps", "steps: is no section.key=value, such as train.steps=500"),
        (".steps=5", ".steps=5: is no section.key=value"),
        ("train.steps=abc", "train.steps=abc: train.steps: 'abc' is not a whole number"),
        ("train.steps=[", "train.steps=[: '[' is no value; put a text with special characters in quotes"),
        ("recipe=llama3-8b/lora", "recipe=llama3-8b/lora: name the recipe without `recipe=`"),
        ("train=5", "train=5: train: a map of keys is needed"),
    ],
)
def test_arguments_are_checked_likewise(argument, complaint):
    with pytest.raises(RecipeError) as caught:
        library.load("llama3-tiny/lora", None, [argument])
    assert any(complaint in mistake for mistake in caught.value.mistakes), caught.value.mistakes


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show"], "which recipe?"),
        (["shwo", "x"], "there is no 'shwo'; commands: list, show, run"),
        (["list", "x"], "unexpected 'x'"),
        (["run", "llama3-tiny/lora", "other"], "unexpected 'other': the recipe is llama3-tiny/lora"),
        (["run", "llama3-tiny/lora", "--nnodes"], "unexpected '--nnodes'; options of `keepstep run` come after --"),
        (["run", "llama3-tiny/lora", "-f"], "-f: a path is missing"),
        (["run", "llama3-tiny/lora", "-f", "x.yaml"], "give a NAME or -f FILE"),
        (["run", "-f", "absent.yaml"], "absent.yaml: No such file or directory"),
        (["run", "lama3-8b/lora"], "there is no recipe 'lama3-8b/lora'; did you mean llama3-8b/lora?"),
        (["run", "llama3"], "there is no recipe 'llama3'"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(tmp_path, words, complaint):
    done = keepstep_recipe(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_goes_to_standard_output(tmp_path):
    for words, code in (([], 2), (["--help"], 0), (["run", "--help"], 0)):
        done = keepstep_recipe(tmp_path, *words)
        assert done.returncode == code
        assert "usage: keepstep recipe list" in (done.stderr if code else done.stdout)


def test_a_script_ends_with_the_mistakes(tmp_path, capsys):
    from keepstep.recipe import read

    (tmp_path / "my.yaml").write_text(LORA + "trian: {}\n")
    for arguments, complaint in (([], "which recipe?"), ([str(tmp_path / "my.yaml")], "did you mean train?")):
        with pytest.raises(SystemExit) as ended:
            read(arguments)
        assert ended.value.code == 2
        assert complaint in capsys.readouterr().err


def test_without_pyyaml_the_command_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['yaml'] = None; from keepstep.recipe.__main__ import main; sys.exit(main(['list']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.endswith("PyYAML is needed to read YAML: pip install 'keepstep[recipe]'\n")
