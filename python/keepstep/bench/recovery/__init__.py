"""How long a job stands still after a fault, and what shortens that: `recovery`, `rehearsal`, `hydrate`."""
