"""``Trainer(strategy="keepstep_model_parallel")``: FSDP2, as Lightning's ``ModelParallelStrategy`` has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lightning.fabric.strategies.model_parallel import _setup_device_mesh
from lightning.fabric.utilities.init import _materialize_distributed_module
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, OptimStateKeyType

import keepstep
from keepstep import KeepstepError
from keepstep.integrations.lightning.strategy import KeepstepStrategy

if TYPE_CHECKING:
    from keepstep.integrations.lightning.fit import Fit
    from keepstep.torch.runtime.run import Run

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class KeepstepModelParallelStrategy(KeepstepStrategy):
    """The module's ``configure_model`` shards it by ``fully_shard(..., mesh=self.device_mesh["data_parallel"])``.

    Ranks hold different parts, which keepstep copies to other ranks in every step (``run.setup(sharded=True)``). The
    model is built when this process has a rank, after ``on_fit_start``. Checkpoints are whole, on rank 0.
    `on_entry`: see `KeepstepStrategy`.
    """

    strategy_name = "keepstep_model_parallel"
    builds_in_entry = True

    def __init__(self, *, on_entry: Callable[[Run], Any] | None = None) -> None:
        super().__init__(on_entry=on_entry)
        if self.session.welcome.elastic:
            raise KeepstepError(
                "KeepstepModelParallelStrategy: this version cannot recover an elastic job (--nnodes MIN:MAX or "
                "--min-replicas); give it a fixed number of ranks"
            )
        self.session.need_rank("Trainer(strategy='keepstep_model_parallel')")  # which shard it has follows from it

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            raise KeepstepError(
                f"KeepstepModelParallelStrategy: this version cannot recover trainer.{trainer.state.fn.value}() of a "
                "sharded module; validate in fit, or load a checkpoint into one that is not sharded"
            )
        if not is_overridden("configure_model", trainer.lightning_module):
            raise KeepstepError("KeepstepModelParallelStrategy: shard the module in its configure_model()")
        assert self.accelerator is not None
        self.accelerator.setup(trainer)

    def protect(self, run: Run, fit: Fit) -> None:
        def build() -> keepstep.State:
            self._build(fit.trainer)
            fit.built()
            return fit.protected()

        run.setup(build, sharded=True)
        if self._on_entry is not None:
            self._on_entry(run)
        run._form("Trainer.fit")
        self.model = fit.trainer.lightning_module

    def _build(self, trainer: Any) -> None:
        module = trainer.lightning_module
        module._device_mesh = _setup_device_mesh(self.world_size, 1, self.world_size, self.root_device)
        _configure_model(trainer)
        _materialize_distributed_module(module, self.root_device)
        self.model = self.precision_plugin.convert_module(module)
        self.model_to_device()
        self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """FSDP2 reduces in every backward."""
        yield

    def teardown(self) -> None:
        """The module stays where it is: what is sharded cannot be moved."""
        assert self.cluster_environment is not None and self.accelerator is not None
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    # ---- checkpoints: collectives of all ranks ----

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        return self._whole(get_model_state_dict, self.model, options=_WHOLE)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        assert self.model is not None
        plain = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        state = self._whole(get_optimizer_state_dict, self.model, plain, options=_WHOLE)
        if self.global_rank != 0:
            return state
        return FullyShardedDataParallel.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, self.model)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        raise KeepstepError(
            "KeepstepModelParallelStrategy: this version cannot begin with ckpt_path; load the weights in "
            "configure_model, before fully_shard"
        )


_configure_model = call._call_configure_model


def _configure_later(trainer: Any) -> None:
    if not getattr(trainer.strategy, "builds_in_entry", False):
        _configure_model(trainer)


call._call_configure_model = _configure_later
