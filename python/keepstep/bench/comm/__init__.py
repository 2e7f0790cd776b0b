"""Between processes and nodes: `allreduce`, `transport`, `rendezvous`; `membership`, the coordinator's decisions."""
