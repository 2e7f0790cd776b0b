"""LoRA on a frozen Llama that is made from its configuration: what a recovery sends, and the memory of a rank.

    pip install peft transformers
    keepstep run --nproc-per-node 2 --spares 1 --journal out --inject kill:rank=1,step=5,phase=backward \\
        examples/lora/train.py --map base.pt

`--map FILE`: the ranks share the memory of the base, which is written to FILE first. docs/how-to/lora.md says more.
"""

import argparse
import contextlib
import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--map", metavar="FILE")
parser.add_argument("--steps", type=int, default=8)
args = parser.parse_args()


class Text(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 256, (24,), generator=torch.Generator().manual_seed(index))


def build() -> keepstep.State:
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=8,
            num_key_value_heads=8, max_position_embeddings=64, tie_word_embeddings=False,
        )
    )  # fmt: skip
    if args.map:
        if not os.path.exists(args.map):
            torch.save(base.state_dict(), mine := f"{args.map}.{os.getpid()}")
            with contextlib.suppress(FileExistsError):  # all have the same; the first file counts
                os.link(mine, args.map)
            os.remove(mine)
        base.load_state_dict(torch.load(args.map, mmap=True), assign=True)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(trained, lr=1e-3))


def share_of_memory() -> int:
    """MiB of this process; of what several have, a part for each."""
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) // 1024


@keepstep.recoverable
def train(run: keepstep.Run) -> None:
    state = run.setup(build)
    model = run.ddp(state.model)
    for step in run.steps(Text(), global_batch=4, micro_batch=2, last_step=args.steps):
        for tokens in step:
            step.backward(model(input_ids=tokens, labels=tokens).loss)
        step.commit(state.optimizer.step)
        step.log(loss=step.loss)
    sizes = {True: 0, False: 0}
    for each in state.model.parameters():
        sizes[each.requires_grad] += each.numel() * each.element_size()
    torch.distributed.barrier()  # while all hold everything
    print(
        f"rank {run.rank}: {share_of_memory()} MiB of memory; adapters {sizes[True] / 1e6:.2f} MB, base "
        f"{sizes[False] / 1e6:.0f} MB"
    )


train()
