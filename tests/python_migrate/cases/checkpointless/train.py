"""A training function in HyperPod's wrapper."""

import torch
import torch.distributed.checkpoint as dcp
from amzn_sagemaker_checkpointing.checkpointing.filesystem.filesystem import SageMakerTieredStorageWriter
from hyperpod_checkpointless_training.dataloader.config import CacheResumeMMAPConfig
from hyperpod_checkpointless_training.dataloader.mmap_data_module import MMAPDataModule
from hyperpod_checkpointless_training.inprocess.abort import CheckpointlessAbortManager
from hyperpod_checkpointless_training.inprocess.health_check import CudaHealthCheck
from hyperpod_checkpointless_training.inprocess.train_utils import HPAgentK8sAPIFactory, wait_rank
from hyperpod_checkpointless_training.inprocess.wrap import HPWrapper
from hyperpod_checkpointless_training.nemo_plugins.checkpoint_manager import PEFTCheckpointManager
from hyperpod_elastic_agent.elastic_event_handler import elastic_event_detected
from torch.nn.parallel import DistributedDataParallel as DDP

wait_rank()


@HPWrapper(
    abort=CheckpointlessAbortManager.get_default_checkpointless_abort(),
    abort_timeout=60.0,
    health_check=CudaHealthCheck(),
    hp_api_factory=HPAgentK8sAPIFactory(),
    checkpoint_manager=PEFTCheckpointManager(enable_checksum=True),
)
def main(module, model, config, caller=None):
    torch.distributed.init_process_group("nccl")
    data = MMAPDataModule(data_module=module, mmap_config=CacheResumeMMAPConfig(prefetch_length=20))
    model = DDP(model)
    for batch in data.train_dataloader():
        if elastic_event_detected():
            dcp.async_save(model.state_dict(), storage_writer=SageMakerTieredStorageWriter(config))
            return
        model(batch).backward()
