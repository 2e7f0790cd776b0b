"""The one training job that every tool of a comparison runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

LAYERS, WIDTH, HEADS, CONTEXT = 6, 384, 6, 64
LEAST_STEP_S = 0.2


@dataclass(frozen=True)
class Workload:
    """A byte GPT of 10.9 million parameters with AdamW. `global_batch` in samples of 64 bytes, over all ranks."""

    world_size: int = 4
    global_batch: int = 12
    seed: int = 0

    def arguments(self) -> list[str]:
        return ["--global-batch", str(self.global_batch), "--seed", str(self.seed)]

    def longer(self, step_s: float) -> Workload:
        """A batch large enough for steps of at least 200 ms, if `step_s` is less."""
        if step_s >= LEAST_STEP_S:
            return self
        share = self.global_batch / self.world_size * LEAST_STEP_S / step_s * 1.25
        return replace(self, global_batch=self.world_size * (int(share) + 1))
