"""How far each rank came in what follows a commit, up to the next step: the step's end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from keepstep.torch.distributed import agreement

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


class StepEnd:
    """Of the last committed step; for one entry. What it notes in the Store is known to whichever process holds the
    rank next.

    Attributes:
        interrupted: the entry begins with this end, which a fault interrupted on some rank.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._key = run._session.key(f"torchtitan/{run.rank}")
        kept = run._session.kept(self._key)
        run._check_interrupted()
        self._known: dict[str, int] = json.loads(kept or b"{}")
        over = run.version == 0 or self._known.get("over") == run.version
        self.interrupted = agreement.sum_of_ranks(int(not over)) > 0
        if self.interrupted:
            run._evaluations.step = run.version

    def over(self) -> None:
        """It is over on this rank. Of version 0, too: a job that starts again finds an older note."""
        self._run._evaluations.step = 0
        self._note("over", self._run.version)

    def told(self, what: str, step: int) -> bool:
        """Whether this rank has told `what` of `step`, or of a later one."""
        return self._known.get(what, 0) >= step

    def tell(self, what: str, step: int) -> None:
        """It has now."""
        self._note(what, step)

    def _note(self, name: str, step: int) -> None:
        self._known[name] = step
        self._run._session.store("set", self._key, json.dumps(self._known).encode(), ends_with_generation=False)
