"""The tools of the benchmarks: jobs, their processes and commits, nodes on one machine, and peers to compare with."""
