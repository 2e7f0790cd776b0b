"""Reinforcement learning with rollout workers that are no ranks: REINFORCE on sequences that have to ascend.

The ranks publish the policy after every step. Rollout workers write the next step's episodes with it (rollout.py), and
the ranks wait for them. Kill ranks and workers as you like: each step uses the same episodes and ends with the same
bits.

    keepstep run --nproc-per-node 2 --spares 1 --rdzv-id sequences train.py --folder /tmp/episodes &
    python rollout.py --job sequences --folder /tmp/episodes &
    python rollout.py --job sequences --folder /tmp/episodes
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from episodes import path, read
from policy import Policy, reward

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True, help="where rollout workers put their episodes")
parser.add_argument("--episodes", type=int, default=16, help="per step, a multiple of the number of ranks")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()


class Episodes(torch.utils.data.Dataset):
    """Their numbers: what is in them is not there before the step."""

    def __len__(self) -> int:
        return options.episodes

    def __getitem__(self, index: int) -> int:
        return index


def build() -> keepstep.State:
    policy = Policy()
    return keepstep.State(policy=policy, optimizer=torch.optim.Adam(policy.parameters(), lr=3e-3))


@keepstep.recoverable
def train(run: keepstep.Run) -> None:
    state = run.setup(build)
    run.publish("policy", state.policy, every_steps=1)
    policy = run.ddp(state.policy)
    for step in run.steps(
        Episodes(), global_batch=options.episodes, micro_batch=options.episodes // run.world_size,
        last_step=options.steps,
    ):  # fmt: skip
        for numbers in step:
            files = [path(options.folder, step.number, int(number)) for number in numbers]
            run.wait_for(lambda files=files: all(file.exists() for file in files))  # faults interrupt it
            tokens = torch.cat([read(file) for file in files])
            rewards = reward(tokens)
            log_probabilities = policy(tokens)[:, :-1].gather(2, tokens.unsqueeze(2)).squeeze(2).sum(dim=1)
            step.backward(-((rewards - rewards.mean()) * log_probabilities).mean())
        step.commit(state.optimizer.step)
        step.log(loss=step.loss, reward=float(rewards.mean()))


if __name__ == "__main__":
    options.folder.mkdir(parents=True, exist_ok=True)
    train()
