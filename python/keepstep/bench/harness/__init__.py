"""What benchmarks are made with: jobs, their processes and commits, nodes of one machine, and peers to compare with."""
