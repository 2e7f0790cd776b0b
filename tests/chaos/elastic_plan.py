"""Draws what happens to an elastic job: who comes, goes and dies, and when. The same seed and number draw the same."""

import random
from dataclasses import dataclass

NODES = 4  # at most; node 0 stays
RANKS = 2  # of a node; a replica is a rank
LEAST = 2  # replicas: with fewer, one death could take the only copy of the state with it

# What it is, and how often of all. Of deadly ones there is never a second before the job recovered from the first: who
# has the only copy of the state cannot be spared then.
KINDS = {
    "join": 24,  # a launcher starts, where a place is free
    "leave": 12,  # SIGTERM
    "scale": 16,
    "auto": 4,
    "vanish": 10,  # a launcher starts, and gets SIGKILL while it joins
    "kill": 12,  # a rank
    "kill in resize": 12,  # a rank, when the journal says that the change has come so far
    "lose": 6,  # a launcher with all it started
    "drain": 6,  # SIGTERM, with too little time
    "leave and kill": 4,  # SIGTERM, and SIGKILL to a rank that stays
}
DEADLY = {"kill", "kill in resize", "lose", "drain", "leave and kill"}
POINTS = ("resize_planned", "sealed", "resized", "generation_prepared", "rank_ready", "activated")


@dataclass(frozen=True)
class Happening:
    after_s: float  # since the one before was begun
    kind: str
    which: float  # of those that it may happen to: a part of 1
    size: int
    point: str
    delay_s: float


def draw(seed, number, seconds):
    """What happens in the round of that number, in about so many seconds."""
    rng = random.Random(f"elastic/{seed}/{number}")
    found = []
    total = 0.0
    while total < seconds:
        after_s = rng.expovariate(1 / 0.4)
        total += after_s
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        found.append(
            Happening(
                after_s, kind, rng.random(), rng.randint(LEAST, NODES * RANKS), rng.choice(POINTS),
                rng.choice([0.0, 0.1, 0.5, 2.0, 4.0]) * rng.random(),
            )
        )  # fmt: skip
    return found
