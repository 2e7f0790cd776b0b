"""Names in training scripts: each is in the table of its page, and those that matter are all there."""

import re

import pytest
from migrating import ROOT

from keepstep.migrate.names import GROUPS
from keepstep.migrate.names.hyperpod import HYPERPOD
from keepstep.migrate.python_file import Use, plain, uses

# Of hyperpod_checkpointless_training 1.0.1.
ARGUMENTS = {
    "HPWrapper": [
        "abort", "finalize", "health_check", "hp_api_factory", "abort_timeout", "enabled", "trace_file_path",
        "async_raise_before_abort", "early_abort_communicator", "checkpoint_manager", "check_memory_status",
    ],
    "MMAPDataModule": ["mmap_config", "parallel_state_util", "is_data_loading_rank"],
    "CacheResumeMMAPConfig": [
        "cache_dir", "val_prefetch_length", "checkpoint_frequency", "model_parallel_group", "enable_batch_encryption",
    ],
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.page)
def test_each_name_is_a_row_of_its_page(group):
    rows = (ROOT / group.page).read_text().splitlines()
    missing = [row for name in group.names if (row := f"| {name.theirs} | {name.ours} |") not in rows]
    assert not missing


@pytest.mark.parametrize("called", ARGUMENTS)
def test_all_arguments_of_hyperpods_wrapper_and_data_are_known(called):
    known = {wanted for name in HYPERPOD.names for wanted in name.looks_like}
    assert known >= {f"{called}({argument}=)" for argument in ARGUMENTS[called]}


def test_no_two_entries_of_a_group_look_for_the_same():
    for group in GROUPS:
        wanted = [each for name in group.names for each in name.looks_like]
        assert len(wanted) == len(set(wanted)), group.page


def test_names_are_found_however_they_were_imported():
    source = """
import torch.distributed as dist
from torch import distributed
from torchft import manager as m

dist.init_process_group("gloo")
distributed.checkpoint.save({})
m.Manager(timeout=3)
Manager = None
Manager
"""
    found = [(use.line, use.name) for use in uses(source)]
    expected = [(6, "init_process_group"), (7, "checkpoint.save"), (8, "Manager"), (8, "Manager(timeout=)")]
    assert found == expected


def test_names_of_other_packages_are_not_taken_for_ours():
    assert uses("from multiprocessing import Manager\nManager()\nimport mine\nmine.DistributedSampler()\n") == []


def test_links_become_pages():
    shown = plain("`a` ([data.md](../reference/data.md)), [B](lora.md#x)", "docs/how-to/page.md")
    assert shown == "a (docs/reference/data.md), B: docs/how-to/lora.md"
    assert not [use for use in uses("import transformers\ntransformers.Trainer()\n") if re.search(r"[`\]]", use.says)]
    assert uses("import torch\ntorch.distributed.init_process_group()\n") == [Use(2, "init_process_group", "nothing")]
