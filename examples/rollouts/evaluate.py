"""An evaluator that follows a running job: the reward of each published policy that it has time for.

python evaluate.py --job sequences
"""

from __future__ import annotations

import argparse

import torch
from policy import Policy, reward

import keepstep


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the reward of the policies that a running job publishes.")
    parser.add_argument("--job", default="", help="as for `keepstep stacks`, or HOST:PORT")
    parser.add_argument("--token-file", help="the job's token, for HOST:PORT")
    parser.add_argument("--sequences", type=int, default=1000)
    options = parser.parse_args()
    policy = Policy()
    with keepstep.subscribe("policy", options.job, token_file=options.token_file) as published:
        for version in published:
            policy.load_state_dict(version.tensors)
            tokens = policy.sample(options.sequences, torch.Generator().manual_seed(0))
            print(f"step {version.step}: reward {reward(tokens).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
