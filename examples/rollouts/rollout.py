"""A rollout worker: writes episodes with the newest policy that the trainer published.

It is no rank of the job. Start as many as you like, and kill any of them.

    python rollout.py --job sequences --folder /tmp/episodes
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from episodes import claimed, path, write
from policy import Policy

import keepstep


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes episodes with the policy that a running job publishes.")
    parser.add_argument("--job", default="", help="the trainer's job, as for `keepstep stacks`, or HOST:PORT")
    parser.add_argument("--token-file", help="the job's token, for HOST:PORT")
    parser.add_argument("--folder", type=Path, required=True, help="for episodes; the trainer's, too")
    parser.add_argument("--episodes", type=int, default=16, help="per step; as the trainer's")
    parser.add_argument("--length", type=int, default=16, help="sequences in an episode")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    policy = Policy()
    with keepstep.subscribe("policy", options.job, token_file=options.token_file) as published:
        version = next(iter(published), None)
        while version is not None:
            policy.load_state_dict(version.tensors)
            step = version.step + 1  # which these episodes are for
            for episode in range(options.episodes):
                file = path(options.folder, step, episode)
                if file.exists():
                    continue
                with claimed(file) as mine:
                    if mine:
                        seed = torch.Generator().manual_seed(step * 1000 + episode)
                        write(file, policy.sample(options.length, seed))
            # Episodes whose worker died meanwhile are still missing: look again, until there is a newer policy.
            try:
                version = published.next(timeout_s=0.05) or version
            except keepstep.JobOver:
                return


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
