"""The arithmetic of plans. The sizes themselves come from meta tensors (tests/strangers/test_recipes.py)."""

import dataclasses

import pytest

from keepstep.recipe import library
from keepstep.recipe.plan import GIB, Sizes, describe, host_memory_per_node, memory_per_rank, nodes_that_fit

# A dense model of 8 GiB in float32: 2 Gi parameters, a quarter of a GiB in each layer.
DENSE = Sizes(2 * GIB, 2 * GIB, 0, 1.0, 8 * GIB, 8 * GIB, GIB // 4, GIB, 3 * GIB)


def recipe(name, *arguments):
    return library.load(name, None, list(arguments))


def test_a_replica_has_weights_gradients_and_two_moments():
    found = memory_per_rank(recipe("qwen3-0.6b/finetune", "train.autocast=false"), DENSE)
    assert found == {"weights": 8 * GIB, "gradients": 8 * GIB, "AdamW": 16 * GIB, "activations": 3 * GIB}


def test_autocast_keeps_copies_in_half_the_size():
    assert memory_per_rank(recipe("qwen3-0.6b/finetune"), DENSE)["copies for autocast"] == 4 * GIB


def test_shards_are_divided_and_layers_are_whole_for_a_while():
    found = memory_per_rank(recipe("llama3-8b/pretrain", "train.autocast=false"), DENSE)  # 32 ranks
    assert found["weights"] == GIB // 4 and found["AdamW"] == GIB // 2
    assert found["whole layers"] == GIB + 3 * GIB // 4
    assert memory_per_rank(recipe("llama3-8b/pretrain"), DENSE)["whole layers"] == (GIB + 3 * GIB // 4) // 2


def test_adapters_take_little_and_a_full_dpo_has_a_reference():
    lora = dataclasses.replace(DENSE, trained=1024, trained_bytes=4096)
    assert memory_per_rank(recipe("llama3-8b/lora"), lora)["AdamW"] == 8192
    assert "reference" not in memory_per_rank(recipe("llama3-8b/dpo"), lora)
    assert memory_per_rank(recipe("llama3-8b/dpo", "lora.rank=0"), DENSE)["reference"] == 8 * GIB


def test_main_memory_holds_every_process_and_the_copies_of_shards():
    found = host_memory_per_node(recipe("llama3-8b/pretrain"), DENSE)
    assert found == {
        "models of 9 processes, while they are built": 72 * GIB,
        "keepstep's copies of shards": 2 * 2 * 8 * 24 * GIB // 32,
    }


@pytest.mark.parametrize(("gib", "nodes"), [(1000, 1), (6, 4), (5, 16), (4.7, 0)])
def test_the_smallest_number_of_nodes_that_fits(gib, nodes):
    assert nodes_that_fit(recipe("llama3-8b/pretrain", "train.autocast=false", f"job.device_gib={gib}"), DENSE) == nodes


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("llama3-8b/lora", [], "By these numbers it fits into GPUs of 80 GiB. It has not been run."),
        ("llama3-8b/lora", ["job.device_gib=8"], "the model has to be sharded"),
        ("llama3-8b/pretrain", ["job.device_gib=4.5", "job.nodes=1"], "by these numbers it does on"),
        (
            "llama3-8b/pretrain",
            ["job.device_gib=1"],
            "it needs tensor or expert parallelism, which recipes do not have",
        ),
        ("llama3-8b/pretrain", [], "keepstep cannot shard state on GPUs yet"),
        ("llama3-tiny/pretrain", [], "All ranks of a node take"),
    ],
)
def test_the_verdict_says_what_does_not_work(name, arguments, says):
    assert says in describe(recipe(name, *arguments), DENSE)


def test_experts_that_a_token_does_not_use_are_told_apart():
    experts = dataclasses.replace(DENSE, experts=GIB, expert_share=0.25)
    said = describe(recipe("gpt-oss-20b/lora"), experts)
    assert f"{2 * GIB - 3 * GIB // 4:,} (the others are in experts that it does not use)" in said
    assert "no expert parallelism" in said
