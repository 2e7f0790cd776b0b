"""What a step costs beside its computation: `step`, `digest`, `reproducible`."""
