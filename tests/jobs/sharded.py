"""A training job whose state is sharded: FSDP2, tensor or pipeline parallel times data parallel, or ZeRO-1.

Each process appends JSON lines to OUT/PID.jsonl: entries, and the digest of what the rank holds at the end.
"""

import argparse
import ctypes
import hashlib
import json
import os
import re
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=12)
parser.add_argument("--kind", choices=["ddp", "fsdp", "hsdp", "tp", "pp", "pp-ddp", "zero"], default="fsdp")
parser.add_argument("--width", type=int, default=48)
parser.add_argument("--global-batch", type=int, default=16)
parser.add_argument("--micro-batch", type=int, default=2)
parser.add_argument("--copies", type=int, default=2)
parser.add_argument("--parity", type=lambda text: [int(each) for each in text.split("+")], help="K+M")
parser.add_argument("--corrupt", nargs=3, type=int, metavar=("RANK", "STEP", "VICTIM"), help="a byte of parity")
parser.add_argument("--corrupt-copy", nargs=3, type=int, metavar=("RANK", "STEP", "SHARD"), help="a byte of it")
parser.add_argument("--durable", action="append", default=[])
parser.add_argument("--every", type=int, default=4)
parser.add_argument("--keep", type=int, action="append", help="of the places in turn; of all, if given once")
parser.add_argument("--max-age", type=float, action="append", help="of the places in turn, in seconds; 0: any age")
parser.add_argument("--in-memory", action="store_true", help="copies of replicated state, too")
parser.add_argument("--memory-every", type=int, help="so many steps between copies in memory")
parser.add_argument("--differs", nargs=2, metavar=("RANK", "JSON"), help="in run.checkpoint; null: it is not called")
parser.add_argument("--equal-names", action="store_true", help="each stage counts its blocks from 0")
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--samples", type=int, default=512)
parser.add_argument("--plain", action="store_true", help="nothing in the model differs from rank to rank")
parser.add_argument("--frozen", action="store_true", help="one layer, which no optimizer has")
parser.add_argument("--note-ids", action="store_true", help="write down the samples of each attempt at a step")
parser.add_argument("--gate", help="a file; while it is there, a process that starts waits")
parser.add_argument("--digests", action="store_true", help="of the whole state, before and after each step")
parser.add_argument("--publish", type=int, metavar="STEPS", help="so many between versions of the weights")
parser.add_argument("--dies-gathering", nargs=2, type=int, metavar=("RANK", "STEP"), help="to publish it")
args = parser.parse_args()
log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


while args.gate and os.path.exists(args.gate):
    time.sleep(0.01)


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), torch.randn(4, generator=generator)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(0.0 if args.plain else 0.1)

    def forward(self, x):
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(x))))


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = torch.nn.Linear(16, width)
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(3)])
        self.norm = torch.nn.LayerNorm(width) if args.plain else torch.nn.BatchNorm1d(width)
        self.last = torch.nn.Linear(width, 5)  # no multiple of the ranks: uneven shards

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(x))[:, :4]


class Part(torch.nn.Module):
    """One of two stages of a `Model`; its parameters keep their names."""

    def __init__(self, model, index):
        super().__init__()
        if index == 0:
            self.first = model.first
        mine = [0, 1] if index == 0 else [2]
        names = range(len(mine)) if args.equal_names else mine
        self.blocks = torch.nn.ModuleDict({str(name): model.blocks[i] for name, i in zip(names, mine, strict=True)})
        if index == 1:
            self.norm, self.last = model.norm, model.last

    def forward(self, x):
        if hasattr(self, "first"):
            x = self.first(x)
        for block in self.blocks.values():
            x = block(x)
        return self.last(self.norm(x))[:, :4] if hasattr(self, "last") else x


def stage_of(part, mesh):
    """GPipe, or 1F1B where each stage is replicated."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stage = PipelineStage(part, mesh.get_local_rank("pp"), 2, torch.device("cpu"), group=mesh["pp"].get_group())
    kind = Schedule1F1B if args.kind == "pp-ddp" else ScheduleGPipe
    return kind(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)


def build_pipeline(run):
    """As `build`, for pipelines. Where every entry wraps the stage in DDP, it makes the schedule there."""
    mesh = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=("pp", "dp"))
    part = Part(Model(args.width), mesh.get_local_rank("pp"))
    if args.kind == "pp":
        for block in part.blocks.values():
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(part, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    pipes = stage_of(part, mesh) if args.kind == "pp" else None
    return keepstep.State(model=part, optimizer=optimizer, schedule=schedule).with_unprotected(
        mesh=mesh, pipes=pipes, data=mesh["dp"]
    )


def build(run):
    """The model, the optimizer, the mesh and its part that divides the samples."""
    model = Model(args.width)
    if args.frozen:
        model.blocks[1].requires_grad_(False)
    mesh = data = None
    if args.kind == "fsdp":
        mesh = data = init_device_mesh("cpu", (run.world_size,))
    elif args.kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=("replicate", "shard"))
        data = None
    elif args.kind == "tp":
        mesh = init_device_mesh("cpu", (run.world_size // 2, 2), mesh_dim_names=("dp", "tp"))
        data = mesh["dp"]
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if args.kind in ("fsdp", "hsdp", "tp"):
        over = mesh["dp"] if args.kind == "tp" else mesh
        for block in model.blocks:
            fully_shard(block, mesh=over)
        fully_shard(model, mesh=over)
    if args.kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    else:
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    state = keepstep.State(model=model, optimizer=optimizer, schedule=schedule)
    return state.with_unprotected(mesh=None, pipes=None, data=data)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def vaults():
    """Bytes of the memory for copies and parity that this process writes to; of one of each name, the largest."""
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) .*/memfd:(keepstep-shard\S+)", line):
                found[match[3]] = max(found.get(match[3], 0), int(match[2], 16) - int(match[1], 16))
    return found


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def held(model, optimizer):
    """Parameters and what the optimizer keeps of them, in an order that does not depend on the rank."""
    of_parameters = optimizer.optim.state if args.kind == "zero" else optimizer.state
    states = [of_parameters[parameter] for parameter in model.parameters() if parameter in of_parameters]
    return [*model.parameters(), *model.buffers(), *(each[key] for each in states for key in sorted(each))]


def digest(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()))
    return total.hexdigest()


def note_digest(when, version, model, optimizer):
    if args.digests:
        found = digest([whole(tensor) for tensor in held(model, optimizer)])
        dist.barrier()  # it raises, where what was gathered above is not all there because of an interruption
        note(**{when: version}, digest=found)


def note_weights(run, model):
    """What readers of this version must see, by its digest."""
    tensors = [whole(tensor) for _, tensor in sorted(model.state_dict().items())]
    dist.barrier()
    note(rank=run.rank, weights=run.version, digest=digest(tensors))


def die_gathering(run, step):
    """When this rank has gathered three of the tensors that make up the version."""
    original, gathered = DTensor.full_tensor, []

    def gather(tensor):
        if run.version == step:
            gathered.append(tensor)
        if len(gathered) > 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(tensor)

    DTensor.full_tensor = gather


def change_a_byte(run, name):
    """Of the newest version in the memory called `name`, the largest one."""
    with open("/proc/self/maps") as maps:
        found = re.findall(rf"([0-9a-f]+)-([0-9a-f]+) .*/memfd:{name} ", maps.read())
    at = max((int(end, 16) - int(begin, 16), int(begin, 16)) for begin, end in found)[1]
    header = (ctypes.c_uint64 * 4).from_address(at)  # src/state/vault/shard_vault.cc
    data, text = (-(-size // 4096) * 4096 for size in header[2:])
    byte = ctypes.c_uint8.from_address(at + 4096 + run.version % 2 * (data + text) + text)
    byte.value ^= 1


def corrupt_parity(run, rank, victim):
    """When all parity of the last version is whole, `rank` changes a byte of its own; `victim` waits to be killed."""
    run._engine.wait_shard(run.version)
    dist.barrier()
    if run.rank == rank:
        change_a_byte(run, "keepstep-shard-parity\\S*")
    dist.barrier()
    if run.rank == victim:
        note(waiting=True)
        signal.pause()


def corrupt_copy(run, rank, shard):
    """When all copies of the last version are whole, `rank` changes a byte of that of `shard` on its node. If that is
    another rank's, that one waits to be killed."""
    run._engine.wait_shard(run.version)
    dist.barrier()
    if run.rank == rank:
        change_a_byte(run, f"keepstep-shard-{shard}")
    dist.barrier()
    if run.rank == shard != rank:
        note(waiting=True)
        signal.pause()


def destinations():
    """One value of an option is for all, else there is one for each."""
    urls = args.durable
    each_of = {"every_steps": [args.every], "keep_last": args.keep or [3], "max_age_s": args.max_age or [0]}
    return [
        {"url": url} | {name: values[i if len(values) > 1 else 0] or None for name, values in each_of.items()}
        for i, url in enumerate(urls)
    ]


REDUNDANCY = keepstep.Parity(*args.parity) if args.parity else keepstep.Copies(args.copies)


@keepstep.recoverable(redundancy=REDUNDANCY)
def train(run):
    run.on("interrupt", lambda reason: note(interrupted=reason))
    pipelined = args.kind in ("pp", "pp-ddp")
    state = run.setup(lambda: (build_pipeline if pipelined else build)(run), sharded=args.kind != "ddp")
    model, optimizer, schedule = state.model, state.optimizer, state.schedule
    mesh, pipes, data = state.mesh, state.pipes, state.data
    differs = json.loads(args.differs[1]) if args.differs and run.rank == int(args.differs[0]) else {}
    if args.durable and differs is not None:
        memory = {"memory_every_steps": 1 if args.in_memory else args.memory_every}
        memory |= {name: differs.pop(name) for name in memory if name in differs}
        run.checkpoint(*(keepstep.Destination(**(each | differs)) for each in destinations()), **memory)
    if args.publish:
        run.publish("weights", model, every_steps=args.publish)
        run.evaluate(lambda step: note_weights(run, model), every_steps=args.publish)
        if args.dies_gathering and run.rank == args.dies_gathering[0] and run.entry == "start":
            die_gathering(run, args.dies_gathering[1])
    trained = run.ddp(model) if args.kind in ("ddp", "zero") else model
    if args.kind == "pp-ddp":
        wrapped = run.ddp(model, process_group=data.get_group(), broadcast_buffers=False)
        pipes = stage_of(wrapped, mesh)
    note(rank=run.rank, entry=run.entry, generation=run.generation, pid=os.getpid(), version=run.version)
    # The schedule of a pipeline cuts what a rank has in a step.
    micro_batch = args.micro_batch if pipes is None else args.global_batch // data.size()
    batches = dict(global_batch=args.global_batch, micro_batch=micro_batch, mesh=data)
    for step in run.steps(Noise(), last_step=args.until, **batches):
        note_digest("before", step.number - 1, model, optimizer)
        if args.corrupt and run.entry == "start" and step.number == args.corrupt[1]:
            corrupt_parity(run, args.corrupt[0], args.corrupt[2])
        if args.corrupt_copy and run.entry == "start" and step.number == args.corrupt_copy[1]:
            corrupt_copy(run, args.corrupt_copy[0], args.corrupt_copy[2])
        for x, y in step:
            if pipes is None:
                step.backward(torch.nn.functional.mse_loss(trained(x), y))
            elif mesh.get_local_rank("pp") == 0:
                pipes.step(x)
            else:
                losses = []
                pipes.step(target=y, losses=losses)
                step.add_loss(torch.stack(losses).mean())
        if args.kind != "tp":  # torch's cannot add norms over different meshes
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step.log(norm=float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
        step.log(world=run.world_size, **{f"ids_{run.rank}": step.sample_ids})
        if args.note_ids and (args.kind != "tp" or run.rank % 2 == 0):  # a slice has the same samples
            note(step=step.number, generation=run.generation, ids=step.sample_ids)
        time.sleep(args.sleep)
        step.commit(optimizer.step, schedule.step, communicates=args.kind == "zero")
        note_digest("after", step.number, model, optimizer)
    final = digest([local(tensor) for tensor in held(model, optimizer)])
    counts = run.shard_counts()
    note(
        rank=run.rank, final=final, pid=os.getpid(), bytes=counts.bytes, waits=counts.waits, vaults=vaults()
    )  # fmt: skip
    if dist.is_initialized():
        dist.barrier()


train()
