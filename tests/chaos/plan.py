"""Draws a round: a model, a shape, faults. The same seed and number draw the same round."""

import random
from dataclasses import dataclass

PHASES = ("forward", "backward", "allreduce", "before_vote", "after_vote", "update", "between")
HANG_PHASES = ("forward", "backward", "before_vote", "between")
FIRST_STEP = 6
GAP = (12, 28)  # steps between two strikes


@dataclass(frozen=True)
class Shape:
    nodes: int
    ranks: int  # of a node
    spares: int
    spare_nodes: int

    @property
    def world(self):
        return self.nodes * self.ranks

    def text(self):
        nodes = f"{self.nodes} nodes of {self.ranks} ranks" if self.nodes > 1 else f"{self.ranks} ranks"
        return f"{nodes}, {self.spares} spares, {self.spare_nodes} spare nodes"


SHAPES = [
    Shape(1, 2, 0, 0), Shape(1, 2, 1, 0), Shape(1, 3, 0, 0), Shape(1, 3, 1, 0), Shape(1, 4, 1, 0),
    Shape(2, 1, 1, 1), Shape(2, 2, 0, 1), Shape(2, 2, 1, 1),
]  # fmt: skip


@dataclass(frozen=True)
class Round:
    model: object
    shape: Shape
    faults: list


def draw(seed, number, models, steps, shapes=SHAPES):
    """The round of that number. The models take turns."""
    rng = random.Random(f"chaos/{seed}/{number}")
    model = models[number % len(models)]
    shape = rng.choice(shapes)
    faults = []
    step = FIRST_STEP + rng.randrange(4)
    while step < steps - 3:
        faults += strike(rng, model, shape, step)
        step += rng.randint(*GAP)
    return Round(model, shape, faults)


def strike(rng, model, shape, step):
    """One fault, or two that belong together."""
    rank = rng.randrange(shape.world)
    at = f"rank={rank},step={step}"
    chance = rng.random()
    if chance < 0.2 and shape.world > 2:
        other = (rank + rng.randrange(1, shape.world)) % shape.world
        if rng.random() < 0.5:  # two at once
            phase = rng.choice(PHASES)
            return [f"kill:{at},phase={phase}", f"kill:rank={other},step={step},phase={phase}"]
        second = rng.choice([f"rank={rank},step={step},phase=hydrate", f"rank={other},step={step},phase=recovery"])
        return [f"kill:{at},phase=allreduce", f"kill:{second}"]
    if model.python and shape.spare_nodes and chance > 0.9:
        # A rank that is not on node 0, where the coordinator is.
        return [f"agent-kill:rank={rng.randrange(shape.ranks, shape.world)},step={step},phase=between"]
    if model.python and shape.nodes > 1 and chance > 0.8:
        return [rng.choice([f"link-drop:{at}", f"link-delay:{at},ms=1"])]
    kind = rng.choice(ALONE if model.python else ALONE_IN_CPP)
    if kind == "flip":
        # Two ranks cannot tell whose parameters are right; whose gradients, the redo tells.
        what = "gradient" if shape.world < 3 or rng.random() < 0.5 else "parameter"
        phase = "before_vote" if what == "gradient" else "between"
        return [f"flip:{at},what={what},phase={phase},seed={rng.randrange(1000)}"]
    phase = rng.choice(HANG_PHASES if kind in ("stop", "gil", "loop", "deadlock") else PHASES)
    return [f"{kind}:{at},{MORE.get(kind, 'phase={phase}').format(phase=phase)}"]


ALONE = [
    "kill", "kill", "kill", "segv", "exception", "exit", "stop", "gil", "loop", "deadlock", "oom", "slow", "agent-stop",
    "disk-full", "flip", "flip",
]  # fmt: skip
ALONE_IN_CPP = ["kill", "kill", "segv", "exception", "exit", "flip"]
MORE = {
    "oom": "phase=forward,mib=64",
    "slow": "seconds=0.05,times=3",
    "agent-stop": "phase=between,seconds=0.2",
    "disk-full": "phase=between,seconds=0.3",
}
