"""The downtime of a job after a fault, and what shortens it: `recovery`, `rehearsal`, `hydrate`."""
