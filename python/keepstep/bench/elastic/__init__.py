"""How long a job pauses while its size changes, and its throughput at each size: `elastic`."""
