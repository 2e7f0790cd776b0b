"""Process groups of other backends, which no replacement could join."""

from __future__ import annotations

from keepstep._errors import KeepstepError

CANNOT_RECOVER = ("gloo", "mpi", "ucc")


def refuse(where: str) -> None:
    """Called in a recoverable function before its steps.

    Raises:
        KeepstepError: a group has such a backend. After a fault its members would wait for each other for ever.
    """
    from torch.distributed import distributed_c10d as c10d

    for group in c10d._world.pg_map:
        backends = c10d._world.pg_backend_config.get(group, "")  # "cpu:gloo,cuda:nccl"
        for name in {each.partition(":")[2] for each in str(backends).split(",")} & set(CANNOT_RECOVER):
            made = "init_process_group" if group is c10d.GroupMember.WORLD else "new_group"
            raise KeepstepError(
                f"{where}: no replacement can join the process group of {made}('{name}'). Remove it, as run.ddp makes "
                f"the world's group; or write {made}('keepstep')"
            )
