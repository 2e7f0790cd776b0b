"""Whether an object will be the same in the next entry of the training function.

It is, if something that outlives this entry leads to it: what `run.keep` and `run.shard` returned, the function itself
(what it closes over, its defaults), its arguments, a module. What only local variables of this entry hold is made again
in the next one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import FrameType, ModuleType

from keepstep._errors import KeepstepError


def require(name: str, item: object, kept: Iterable[object], entry: Iterable[object]) -> None:
    """KeepstepError if `item` will be another object in the next entry.

    `kept`: what `run.keep` and `run.shard` returned, where most is found at once; `entry`: the function and its
    arguments. That nothing leads to `item` takes a second or two to find out.
    """
    if _leads_to([*kept], item, everything=False) or _leads_to([*entry, *sys.modules.values()], item, everything=True):
        return
    kind = type(item).__name__
    raise KeepstepError(
        f"protect: this {kind} was made in this entry of the training function, so '{name}' would be another object in "
        f"the next entry, and the first fault would end the job. Write {name} = run.keep(lambda: {kind}(...)), or "
        "return it from the function that run.keep calls"
    )


def _leads_to(level: list[object], item: object, everything: bool) -> bool:
    """Breadth first, so that what is near is found soon. `everything`: also through classes, and modules."""
    wanted = id(item)
    seen = {id(level)}
    while level:
        fresh = []
        for each in level:
            if id(each) == wanted:
                return True
            if id(each) not in seen and type(each) is not FrameType and (everything or not _of_the_program(each)):
                seen.add(id(each))
                fresh.append(each)
        level = gc.get_referents(*fresh) if fresh else []
    return False


def _of_the_program(each: object) -> bool:
    """What nearly every object leads to, and from there to everything."""
    return issubclass(type(each), (type, ModuleType)) or (type(each) is dict and "__builtins__" in each)
