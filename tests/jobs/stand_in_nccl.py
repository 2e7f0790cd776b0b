"""small.py with a stand-in for torch's NCCL backend, so that its whole life runs without a GPU.

The stand-in moves nothing (the model is in main memory and its gradients go over "keepstep"); it writes down what is
done to it, and in which thread. Connecting exchanges ids through the Store and then waits for all ranks, as NCCL does:
a wait that nothing but the others can end. With --die-in-connect rank 1 of generation 2 dies once rank 0 is in it.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType

import keepstep.torch  # noqa: F401
from keepstep.torch.distributed import nccl
from keepstep.torch.state.registry import Registry
from keepstep.torch.tensors import cuda

folder = Path(sys.argv[sys.argv.index("--out") + 1])
die_in_connect = "--die-in-connect" in sys.argv and sys.argv.remove("--die-in-connect") is None
log = open(folder / f"{os.getpid()}.nccl", "a", buffering=1)
kept = []


def note(what, **values):
    log.write(
        json.dumps({"what": what, "main": threading.current_thread() is threading.main_thread(), **values}) + "\n"
    )


class StandIn(Backend):
    supports_splitting = supports_coalescing = supports_shrinking = supports_window = supports_abort_hooks = False
    _supports_time_estimate = False
    supports_reconfigure = True

    def __init__(self, options):
        super().__init__(options.group_rank, options.group_size)
        self.number = len(kept)
        self.store = options.store
        self.reconfigurable = options.enable_reconfigure
        self.error = ErrorType.SUCCESS
        self.uuid = -1
        kept.append(self)
        note("made", number=self.number, reconfigurable=options.enable_reconfigure)
        if not options.enable_reconfigure:
            self.meet("unique_id", self.rank(), self.size())

    @property
    def options(self):
        return SimpleNamespace(enable_reconfigure=self.reconfigurable)

    def name(self):
        return "nccl2"

    def getBackendName(self):
        return "nccl2"

    _get_backend_name = getBackendName

    def meet(self, where, rank, size, die=False):
        keys = [f"{where}/{peer}" for peer in range(size)]
        self.store.set(keys[rank], os.urandom(128))
        self.store.wait(keys)
        ids = self.store.multi_get(keys)
        assert all(len(value) == 128 for value in ids)
        here = folder / f"meeting-{ids[0].hex()[:16]}"
        here.mkdir(exist_ok=True)
        while die and not (here / "0").exists():
            time.sleep(0.01)
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        (here / str(rank)).touch()
        while len(list(here.iterdir())) < size:
            time.sleep(0.01)

    def get_error(self):
        return self.error

    def abort(self):
        self.error = ErrorType.COMM_ERROR
        note("abort", number=self.number)

    def shutdown(self):
        note("shutdown", number=self.number, aborted=self.error != ErrorType.SUCCESS)

    def get_reconfigure_handle(self):
        return f"nccl2:{self.rank()}:{self.uuid}:{os.getpid()}.{self.number}:"

    def reconfigure(self, options):
        mine = options.handles.index(self.get_reconfigure_handle())
        die = die_in_connect and (options.uuid, mine) == (2, 1)
        self.meet(f"reconfigure/{options.uuid}", mine, len(options.handles), die)
        self.uuid, self.error = options.uuid, ErrorType.SUCCESS
        note("reconfigure", number=self.number, uuid=options.uuid, handles=options.handles)
        return SimpleNamespace(wait=lambda: True)


def _create_nccl2_process_group(options, _backend_options=None):  # by this name "nccl" can be reconfigured
    return StandIn(options)


dist.Backend._ensure_backend_registered("nccl")
plugin = dist.Backend._plugins["NCCL"]
dist.Backend._plugins["NCCL"] = plugin._replace(creator_fn=_create_nccl2_process_group)
nccl.available = lambda: True
Registry.cuda_devices = lambda self: [torch.device("cuda", 0)]
cuda.settle = lambda devices, backends: cuda.check(backends)

script = Path(__file__).with_name("small.py")
sys.argv[0] = str(script)
runpy.run_path(str(script), run_name="__main__")
