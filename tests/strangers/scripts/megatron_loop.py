"""A training loop over Megatron-core, as its own example has it: a small GPT, its DDP, optimizer and scheduler."""

import json
import os

import megatron_cpu
import mine
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from keepstep.integrations.megatron import recoverable

WORDS, LENGTH, MICRO_BATCH, MICRO_BATCHES = 64, 16, 2, 2
# What `--case` changes: parallelism, options of the DDP, of the optimizer, types.
CASES = {
    "replicated": {},
    "distributed": {"ddp": {"use_distributed_optimizer": True}},
    "overlapped": {"ddp": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "bucket_size": 10_000}},
    "instances": {"ddp": {"use_distributed_optimizer": True, "num_distributed_optimizer_instances": 2}},
    "bfloat16": {"ddp": {"use_distributed_optimizer": True}, "type": torch.bfloat16},
    "overlapping gather": {
        "ddp": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    },
    "gloo": {"parallel": {"create_gloo_process_groups": True}},
    "tensor": {"parallel": {"tensor_model_parallel_size": 2}, "ddp": {"use_distributed_optimizer": True}},
}
chosen = mine.options()
case = CASES[chosen.case]
megatron_cpu.on_cpu()


def tokens(number):
    """Micro-batch `number` over all ranks of the job."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, WORDS, (MICRO_BATCH, LENGTH + 1), generator=generator)


def batches(iteration):
    """This rank's of an iteration, by its place in data parallelism."""
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    for index in range(MICRO_BATCHES):
        yield tokens((iteration * MICRO_BATCHES + index) * size + rank)


def forward_step(data, model):
    text = next(data)
    places = torch.arange(LENGTH).repeat(MICRO_BATCH, 1)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    output = model(text[:, :-1].contiguous(), places, mask, labels=text[:, 1:].contiguous())

    def loss_of(losses):
        loss = losses.float().mean()
        return loss, {"loss": loss.detach()}

    return output, loss_of


@recoverable(replicated=chosen.case == "replicated")
def build():
    ddp = case.get("ddp", {})
    parallel_state.initialize_model_parallel(
        **({"create_gloo_process_groups": False} | case.get("parallel", {})),
        num_distributed_optimizer_instances=ddp.get("num_distributed_optimizer_instances", 1),
    )
    model_parallel_cuda_manual_seed(7)
    kind = case.get("type", torch.float32)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        bf16=kind == torch.bfloat16,
        params_dtype=kind,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        finalize_model_grads_func=finalize_model_grads,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        WORDS,
        LENGTH,
        position_embedding_type="learned_absolute",
    ).to(kind)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, **ddp), model)
    options = OptimizerConfig(
        lr=1e-2,
        min_lr=1e-3,
        bf16=kind == torch.bfloat16,
        params_dtype=kind,
        use_distributed_optimizer=ddp.get("use_distributed_optimizer", False),
        clip_grad=1.0,
    )
    optimizer = get_megatron_optimizer(options, [model], use_gloo_process_groups=False)
    scheduler = OptimizerParamScheduler(optimizer, 0.0, 1e-2, 1e-3, 16, 160, "cosine", 0.1, 0.1, 0, "constant")
    return model, optimizer, scheduler


@build.training
def train(model, optimizer, scheduler):
    compute = get_forward_backward_func()
    for iteration in build.iterations(chosen.until, increment=8):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = compute(
            forward_step_func=forward_step,
            data_iterator=batches(iteration),
            model=model,
            num_microbatches=MICRO_BATCHES,
            seq_length=LENGTH,
            micro_batch_size=MICRO_BATCH,
            forward_only=False,
        )
        build.log(loss_here=sum(float(each["loss"]) for each in losses) / MICRO_BATCHES)
        done, norm, _ = optimizer.step()
        scheduler.step(increment=8)
        rate = optimizer.param_groups[0]["lr"]
        with open(os.path.join(chosen.out, f"steps.{os.environ['RANK']}"), "a") as out:
            out.write(json.dumps([iteration, int(done), norm, rate]) + "\n")
    states = {"model": model.module.state_dict(), "optimizer": optimizer.optimizer.state_dict()}
    mine.leave(chosen.out, os.environ["RANK"], **states)


if __name__ == "__main__":
    train()
