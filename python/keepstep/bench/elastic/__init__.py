"""How long a job stands still while its size changes, and what it does at each size: `elastic`."""
