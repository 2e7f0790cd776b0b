"""A loop with Accelerate; under torchrun keepstep's Accelerator is Accelerate's own."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

import library_work
from keepstep.integrations.accelerate import Accelerator


def main() -> None:
    chosen = library_work.options()
    accelerator = Accelerator(cpu=True)
    steps = library_work.Steps(chosen.commits)
    model = library_work.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(library_work.Text(), batch_size=library_work.PER_RANK, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    if (from_there := library_work.newest(chosen.checkpoints, "whole")) is not None:
        accelerator.load_state(str(from_there))
        done = int(from_there.name.rpartition("-")[2])

    @accelerator.recoverable
    def train() -> None:
        step = done
        for batch in accelerator.skip_first_batches(loader, done) if done else loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step = loader.prepared.step if hasattr(loader, "prepared") else step + 1
            steps.write(step, accelerator.process_index, accelerator.num_processes)
            if chosen.checkpoints is not None and step % library_work.EVERY_STEPS == 0:
                folder = chosen.checkpoints / f"checkpoint-{step}"
                accelerator.save_state(str(folder))
                if accelerator.is_main_process:
                    (folder / "whole").touch()
            if step == chosen.until:
                break

    train()
    library_work.leave(chosen)


if __name__ == "__main__":
    main()
