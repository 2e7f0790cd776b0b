"""Hugging Face's Trainer; under torchrun `recoverable` changes nothing."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

import library_work
from keepstep.integrations.transformers import recoverable


class WritesSteps(TrainerCallback):
    def __init__(self, steps: library_work.Steps) -> None:
        self._steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.write(state.global_step, args.process_index, args.world_size)


def main() -> None:
    chosen = library_work.options()
    saving = {"save_strategy": "no"}
    if chosen.checkpoints is not None:
        saving = {"save_strategy": "steps", "save_steps": library_work.EVERY_STEPS, "save_total_limit": 2}
    arguments: dict[str, Any] = {
        "output_dir": str(chosen.checkpoints or chosen.commits), "max_steps": chosen.until, "use_cpu": True,
        "per_device_train_batch_size": library_work.PER_RANK, "lr_scheduler_type": "constant", "report_to": [],
        "disable_tqdm": True, "logging_steps": 1_000_000, "ignore_data_skip": False, **saving,
    }  # fmt: skip
    trainer = Trainer(
        model=library_work.model(),
        args=TrainingArguments(**arguments),
        train_dataset=library_work.Text(),
        callbacks=[WritesSteps(library_work.Steps(chosen.commits))],
    )
    from_there = library_work.newest(chosen.checkpoints, "trainer_state.json")
    recoverable(trainer).train(resume_from_checkpoint=None if from_there is None else str(from_there))
    library_work.leave(chosen)


if __name__ == "__main__":
    main()
