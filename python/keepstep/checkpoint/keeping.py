"""``keepstep ckpt rm`` and ``pin``."""

from __future__ import annotations

import argparse
import os
import time

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import destinations, memory
from keepstep.checkpoint.words import parser


def _named(text: str) -> tuple[str, int]:
    destination, step = destinations.split_step(text)
    if step is None:
        raise argparse.ArgumentTypeError(f"'{text}': which step? DESTINATION@STEP is needed")
    return destination, step


def _at_work(store: _checkpoint.Store) -> bool:
    try:
        return not _checkpoint.read_owner(store).is_gone(int(time.time()))
    except _checkpoint.Error as error:
        if error.code != "NOT_FOUND":
            raise
        return False


def rm(arguments: list[str]) -> int:
    options_parser = parser(
        "rm", "Removes checkpoints, and the remains of unfinished saves. Pinned checkpoints stay; so does the newest "
        "complete one in a destination, unless --last is given.",
    )  # fmt: skip
    options_parser.add_argument("checkpoints", nargs="+", type=_named, metavar="DESTINATION@STEP")
    options_parser.add_argument("--last", action="store_true", help="also remove the newest complete one")
    options = options_parser.parse_args(arguments)
    memory.refuse("rm", [destination for destination, _ in options.checkpoints])
    for destination, step in options.checkpoints:
        store = destinations.open_store(destination)
        catalog = _checkpoint.Catalog(store)
        found = {info.step: info for info in catalog.checkpoints()}
        if step not in found:
            raise KeepstepError(
                f"{destination} has no step {step}; it has {destinations.steps_in_words(sorted(found))}"
            )
        if found[step].foreign:
            raise KeepstepError(f"{destination}@{step} is not keepstep's: remove its folder by hand")
        if not found[step].complete and _at_work(store):
            raise KeepstepError(
                f"{destination}@{step} is not complete, and a job writes there: it may be a save that runs"
            )
        complete = [info.step for info in found.values() if info.complete]
        if not options.last and complete and step == max(complete):
            raise KeepstepError(
                f"{destination}@{step} is the newest complete one there; --last removes it all the same"
            )
        catalog.remove(step)
        print(f"removed {destination}@{step}")
    return 0


def pin(arguments: list[str]) -> int:
    options_parser = parser("pin", "Keeps checkpoints, regardless of retention and `keepstep ckpt rm`.")
    options_parser.add_argument("checkpoints", nargs="+", type=_named, metavar="DESTINATION@STEP")
    options_parser.add_argument("--remove", action="store_true", help="unpin them")
    options_parser.add_argument("--why", default="", metavar="TEXT", help="reason to store with the pin")
    options = options_parser.parse_args(arguments)
    memory.refuse("pin", [destination for destination, _ in options.checkpoints])
    for destination, step in options.checkpoints:
        catalog = _checkpoint.Catalog(destinations.open_store(destination))
        if options.remove:
            catalog.unpin(step)
            print(f"{destination}@{step} is no longer pinned")
            continue
        if step not in {info.step for info in catalog.checkpoints() if info.complete}:
            raise KeepstepError(f"{destination} has no complete checkpoint of step {step}")
        who = f"{os.environ.get('USER', '')} {time.strftime('%Y-%m-%d %H:%M:%S')}".strip()
        catalog.pin(step, f"{who}\n{options.why}\n")
        print(f"pinned {destination}@{step}")
    return 0
