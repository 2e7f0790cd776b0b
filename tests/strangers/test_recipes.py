"""`keepstep recipe run` with the real packages: every tiny recipe, with ranks killed, arrives at the same bits."""

import itertools
import json
import signal
import subprocess
import sys
import time

import pytest

from harness import KEEPSTEP, LIMIT_S, json_lines
from keepstep.recipe import library
from keepstep.recipe.plan import Sizes, describe
from keepstep.recipe.rendering import render

STEPS = 14
KILLS = ["kill:rank=1,step=5,phase=backward", "kill:rank=0,step=9,phase=after_vote"]
FAMILIES = ["llama3", "gpt-oss", "qwen3", "deepseek"]
KINDS = ["pretrain", "continue", "finetune", "lora", "dpo"]
# In every `make test`: one of each family.
OFTEN = {("llama3", "pretrain"), ("gpt-oss", "lora"), ("qwen3", "finetune"), ("deepseek", "dpo")}


def recipes():
    for family, kind in itertools.product(FAMILIES, KINDS):
        marks = () if (family, kind) in OFTEN else (pytest.mark.long,)
        yield pytest.param(f"{family}-tiny/{kind}", marks=marks)


class Ran:
    def __init__(self, folder, done, out):
        self.exit_code, self.output, self.out = done.returncode, done.stdout + done.stderr, folder / out
        self.journals = sorted((path for path in self.out.glob("journal*")), key=lambda path: path.stat().st_mtime)

    def losses(self):
        times = ("t", "mono", "committed_mono")
        return [
            {name: value for name, value in line.items() if name not in times and not name.startswith("data_waits")}
            for line in json_lines(self.journals[-1] / "metrics.jsonl")
        ]

    def events(self, name):
        return [line for line in json_lines(self.journals[-1] / "journal.jsonl") if line["event"] == name]

    def result(self):
        """Bytes of the weights that the job left, in the format of transformers or peft."""
        return {path.name: path.read_bytes() for path in sorted((self.out / "model").glob("*.safetensors"))}


def command(*words):
    return [sys.executable, "-m", "keepstep.recipe", *map(str, words)]


def run(folder, name, *settings, inject=(), options=()):
    folder.mkdir(parents=True, exist_ok=True)
    options = [*(part for text in inject for part in ("--inject", text)), *options]
    words = command("run", name, f"train.steps={STEPS}", "out=out", *settings, *(["--", *options] if options else []))
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    return Ran(folder, done, "out")


def start(folder, *words):
    return subprocess.Popen(command("run", *words), cwd=folder)


def wait_for(process, condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def finished(ran, steps=STEPS):
    assert ran.exit_code == 0, ran.output
    losses = ran.losses()
    assert [line["step"] for line in losses] == list(range(losses[0]["step"], steps + 1)), ran.output
    assert ran.result(), ran.output
    return ran


def assert_same(ran, reference, kills=2):
    assert finished(ran).losses() == reference.losses()
    assert ran.result() == reference.result()
    assert len(ran.events("generation_prepared")) == 1 + kills, ran.output
    assert not ran.events("restart"), ran.output


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The folder of a model that pre-training left, by family: what `continue` begins with."""
    known = {}

    def get(family):
        if family not in known:
            ran = finished(run(tmp_path_factory.mktemp(family), f"{family}-tiny/pretrain", "data.sequence_length=64"))
            known[family] = ran.out / "model"
        return known[family]

    return get


def beginning(pretrained, name):
    family, kind = name.split("-tiny/")
    return [f"model.path={pretrained(family)}"] if kind == "continue" else []


@pytest.mark.parametrize("name", list(recipes()))
def test_a_tiny_recipe_with_killed_ranks_arrives_at_the_same_bits(pretrained, tmp_path, name):
    settings = beginning(pretrained, name)
    reference = finished(run(tmp_path / "undisturbed", name, *settings, "job.spares=0"))
    assert reference.losses()[-1]["loss"] < reference.losses()[0]["loss"]
    assert_same(run(tmp_path / "killed", name, *settings, inject=KILLS), reference)


@pytest.mark.long
@pytest.mark.parametrize(("name", "settings"), [
    ("llama3-tiny/pretrain", []),
    ("qwen3-tiny/continue", ["train.autocast=true"]),
    ("gpt-oss-tiny/finetune", ["model.recompute=true"]),
    ("deepseek-tiny/lora", []),
    ("llama3-tiny/dpo", []),
    ("qwen3-tiny/dpo", ["lora.rank=0"]),
])  # fmt: skip
def test_a_sharded_model_does_too(pretrained, tmp_path, name, settings):
    settings = [*beginning(pretrained, name), *settings, "job.parallel=fsdp"]
    reference = finished(run(tmp_path / "undisturbed", name, *settings, "job.spares=0"))
    assert_same(run(tmp_path / "killed", name, *settings, inject=KILLS), reference)


@pytest.mark.long
@pytest.mark.parametrize(("name", "settings"), [
    ("qwen3-tiny/dpo", ["lora.rank=0"]),
    ("llama3-tiny/lora", ["model.recompute=true", "model.dtype=bfloat16"]),
    ("llama3-tiny/finetune", ["train.autocast=true"]),
])  # fmt: skip
def test_other_settings_do_too(tmp_path, name, settings):
    reference = finished(run(tmp_path / "undisturbed", name, *settings, "job.spares=0"))
    assert_same(run(tmp_path / "killed", name, *settings, inject=KILLS), reference)


@pytest.mark.long
def test_the_same_command_goes_on_from_the_newest_checkpoint(tmp_path):
    settings = ["train.steps=60", "job.spares=0"]
    whole = finished(run(tmp_path / "whole", "llama3-tiny/pretrain", *settings), 60)
    folder = tmp_path / "parts"
    folder.mkdir()
    with start(folder, "llama3-tiny/pretrain", "out=out", *settings) as process:
        wait_for(process, lambda: len(json_lines(folder / "out" / "journal" / "metrics.jsonl")) > 20)
        process.send_signal(signal.SIGUSR1)  # a notice: it ends after this step
        assert process.wait(LIMIT_S) == 75
    again = finished(run(folder, "llama3-tiny/pretrain", *settings), 60)
    assert again.journals[-1].name == "journal2"
    first = again.losses()[0]["step"]
    assert first > 20
    assert again.losses() == whole.losses()[first - 1 :]
    assert again.result() == whole.result()


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_line_makes_a_job_elastic(tmp_path, parallel):
    """It shrinks from two ranks to one and grows back, and no step is lost."""
    settings = ["job.elastic=1", "train.steps=400", "out=out", f"job.parallel={parallel}", "job.spares=0"]
    process = start(tmp_path, "llama3-tiny/finetune", *settings, "--", "--min-change-interval", "0")
    journal = tmp_path / "out" / "journal"

    def steps():
        return len(json_lines(journal / "metrics.jsonl"))

    def worlds():
        lines = json_lines(journal / "journal.jsonl")
        return [len(line["workers"]) for line in lines if line["event"] == "generation_prepared"]

    for number, ranks in enumerate((1, 2), start=2):
        seen = steps()
        wait_for(process, lambda seen=seen: steps() > seen + 5)
        subprocess.run([KEEPSTEP, "scale", journal, "--to", str(ranks)], check=True, capture_output=True)
        wait_for(process, lambda number=number: len(worlds()) >= number)
    assert process.wait(LIMIT_S) == 0
    assert worlds() == [2, 1, 2]
    assert [line["step"] for line in json_lines(journal / "metrics.jsonl")] == list(range(1, 401))


@pytest.mark.long
def test_a_copied_recipe_runs_without_keepsteps_scripts(tmp_path):
    shown = subprocess.run(
        command("show", "llama3-tiny/finetune", "--to", "mine"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["finetune.py", "parts.py", "recipe.yaml"]
    script = tmp_path / "mine" / "finetune.py"
    script.write_text(script.read_text().replace("step.log(norm=norm", "step.log(mine=7, norm=norm"))
    words = command("run", "-f", "mine/recipe.yaml", "train.steps=3", "train.warmup_steps=1")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    ran = finished(Ran(tmp_path, done, "out/llama3-tiny/finetune"), 3)
    assert {line["mine"] for line in ran.losses()} == {7}, shown.stdout


ARROW = """
import json, sys, pyarrow
from pathlib import Path
from keepstep.recipe.sample import lines
folder = Path(sys.argv[1])
folder.mkdir()
rows = [json.loads(line) for line in lines(sys.argv[2]).splitlines()]
table = pyarrow.Table.from_pylist(rows)
for number in range(2):  # as save_to_disk does: Arrow streams, and what they are
    part = table.slice(number * 200, 200)
    with pyarrow.ipc.new_stream(folder / f"data-0000{number}-of-00002.arrow", table.schema) as out:
        out.write_table(part)
(folder / "state.json").write_text("{}")
(folder / "dataset_info.json").write_text("{}")
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pretrain", "lora", "dpo"])
def test_a_data_set_that_hugging_face_saved_gives_the_same(tmp_path, kind):
    subprocess.run([sys.executable, "-c", ARROW, tmp_path / "saved", kind], check=True)
    reference = finished(run(tmp_path / "sample", f"qwen3-tiny/{kind}", "job.spares=0"))
    ran = run(tmp_path / "arrow", f"qwen3-tiny/{kind}", "job.spares=0", f"data.input=[{tmp_path / 'saved'}]")
    assert finished(ran).losses() == reference.losses()


PACKED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import parts
from keepstep.recipe.library import load
from keepstep.data import PackedDataset, write_chat
from keepstep.recipe.sample import lines
open("chats.jsonl", "w").write(lines("finetune"))
write_chat("corpus", ["chats.jsonl"], end_of_document=256, vocabulary=257)
model = parts.model_of(load(sys.argv[2])).eval()
batch = PackedDataset("corpus", 383, too_long="drop").make_batch([0, 1, 2])
inputs, ids, positions = (batch[name] for name in ("tokens", "document_ids", "position_ids"))
with torch.no_grad():
    together = model(input_ids=inputs, use_cache=False, **parts.packed(model.config, ids, positions)).logits
    for row in range(3):
        assert ids[row].max() >= 2
        for document in range(int(ids[row].max()) + 1):
            mine = ids[row] == document
            alone = model(input_ids=inputs[row, mine][None], use_cache=False).logits[0]
            torch.testing.assert_close(together[row, mine], alone, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_documents_that_share_a_sample_do_not_see_each_other(tmp_path, family):
    done = subprocess.run(
        [sys.executable, "-c", PACKED, library.SCRIPTS, f"{family}-tiny/finetune"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_every_recipe_has_a_plan_and_the_parameters_that_its_model_states(tmp_path):
    """As meta tensors count them, without adapters."""
    recipes = [library.load(name, None, ["model.path="]) for name in library.names()]
    files = [tmp_path / f"{number}.yaml" for number in range(len(recipes))]
    for recipe, file in zip(recipes, files, strict=True):
        file.write_text(render(recipe))
    words = [sys.executable, library.SCRIPTS / "meta.py", *files]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for recipe, line in zip(recipes, done.stdout.splitlines(), strict=True):
        sizes = Sizes.of(json.loads(line))
        adapters = sizes.trained if recipe.kind in ("lora", "dpo") else 0
        assert sizes.parameters - adapters == recipe.model.parameters, recipe.recipe
        said = describe(recipe, sizes)
        if recipe.job.device == "cuda" and not recipe.sharded:
            assert "By these numbers it fits into GPUs of 80 GiB. It has not been run." in said, recipe.recipe
        if recipe.sharded and not recipe.recipe.startswith("deepseek-v3/"):
            assert "By these numbers it fits" in said, f"{recipe.recipe}\n{said}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("model.type=lama", "model.type: transformers has no lama"),
        (
            "model.shape.num_layers=3",
            "model.shape.num_layers: LlamaConfig has no such key; did you mean num_hidden_layers?",
        ),
    ],
)
def test_a_shape_that_transformers_does_not_know_is_refused(setting, complaint):
    done = subprocess.run(command("show", "--plan", "llama3-8b/lora", setting), capture_output=True, text=True)
    assert done.returncode == 2 and complaint in done.stderr


LOADED = """
import sys
from transformers import AutoModelForCausalLM
print(sum(each.numel() for each in AutoModelForCausalLM.from_pretrained(sys.argv[1]).parameters()))
"""


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_what_a_recipe_leaves(pretrained, family):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, pretrained(family)], capture_output=True, text=True, check=True
    )
    config = json.loads((pretrained(family) / "config.json").read_text())
    assert int(done.stdout.split()[-1]) > 80_000 and config["num_hidden_layers"] == 2
