"""How a save begins, whether a rank or its node's background writer writes it."""

from __future__ import annotations

from typing import NamedTuple

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import owners


class Begun(NamedTuple):
    """The parts of the names of a save's files."""

    step: int
    token: int
    attempt: int


def begin(
    url: str, store: _checkpoint.Store, job: str, step: int | None, replace: bool
) -> tuple[_checkpoint.Owner, Begun]:
    """Makes sure that the destination belongs to this job. Saves `step`, or the one after the newest step.

    KeepstepError: the destination belongs to another job, or already has that step.
    """
    try:
        owner = owners.owner_of(url, store, job)
        present = {info.step: info for info in _checkpoint.Catalog(store).checkpoints()}
        chosen = step if step is not None else max(present, default=0) + 1
        newest = max((info.step for info in present.values() if info.complete), default=0)
        if newest > chosen and _is_of_another(url, store, newest, owner.token):
            raise KeepstepError(
                f"{store.describe()} was another job's meanwhile, which saved step {newest}: step {chosen} would be "
                "taken for an old one and removed. Save into another destination, or remove what the other one saved "
                "(keepstep ckpt rm DESTINATION@STEP --last)"
            )
    except _checkpoint.Error as error:
        raise KeepstepError(str(error)) from None
    if chosen in present and present[chosen].complete and not replace:
        raise KeepstepError(
            f"{store.describe()} has a complete checkpoint of step {chosen} already; save another step, or "
            "Writer(replace=True) to replace it"
        )
    if chosen in present and present[chosen].foreign:
        raise KeepstepError(
            f"{store.describe()}: '{_checkpoint.folder_of(chosen)}' holds files that are not keepstep's; they are "
            "left alone, save into another destination"
        )
    return owner, Begun(chosen, owner.token, owners.next_attempt())


def _is_of_another(url: str, store: _checkpoint.Store, step: int, token: int) -> bool:
    since = owners.taken_since(url)
    return since is not None and since < _checkpoint.Catalog(store).manifest(step).token < token
