"""Adapters (the package peft) over a frozen language model of transformers."""

import mine
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import keepstep


class Text(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.randint(0, 256, (24,), generator=torch.Generator().manual_seed(index))


def build():
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64,
        )
    )  # fmt: skip
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
    model.train()
    return keepstep.State(
        model=model, optimizer=torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    )


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    for step in run.steps(Text(), global_batch=16, micro_batch=4, last_step=chosen.until):
        for tokens in step:
            step.backward(replica(input_ids=tokens, labels=tokens).loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.commit(optimizer.step)
        step.log(loss=step.loss)
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    train(mine.options())
