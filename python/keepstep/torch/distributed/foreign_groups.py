"""A world's process group of another backend, which no replacement could join."""

from __future__ import annotations

from keepstep._errors import KeepstepError

CANNOT_RECOVER = ("gloo", "mpi", "ucc")


def refuse(where: str) -> None:
    """Called in a recoverable function before its steps. Groups of `new_group` end with the generation and may stay.

    Raises:
        KeepstepError: the world's group has such a backend. After a fault its members would wait for ever.
    """
    from torch.distributed import distributed_c10d as c10d

    world = c10d.GroupMember.WORLD
    if world is None or world.size() == 1:
        return
    backends = str(c10d._world.pg_backend_config.get(world, ""))  # "cpu:gloo,cuda:nccl"
    for name in {each.partition(":")[2] for each in backends.split(",")} & set(CANNOT_RECOVER):
        raise KeepstepError(
            f"{where}: no replacement can join the process group of init_process_group('{name}'). Remove the call, as "
            "run.ddp makes the world's group; or write init_process_group('keepstep')"
        )
