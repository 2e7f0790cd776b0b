"""The cost of a step besides its computation: `step`, `digest`, `reproducible`."""
