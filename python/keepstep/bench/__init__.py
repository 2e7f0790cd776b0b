"""``keepstep bench NAME`` and ``keepstep demo``: measurements one can repeat. One module per benchmark, by subject."""
