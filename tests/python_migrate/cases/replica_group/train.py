"""A training loop of torchft."""

import os

import torchft
from torchft import DistributedSampler, Manager, Optimizer


def train(net, optimizer, corpus):
    manager = Manager(pg=torchft.ProcessGroupGloo(), min_replica_size=1, load_state_dict=None, state_dict=None)
    model = torchft.DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, optimizer)
    sampler = DistributedSampler(corpus, replica_rank=int(os.environ["REPLICA_GROUP_ID"]), num_replica_groups=2)
    return model, optimizer, sampler
