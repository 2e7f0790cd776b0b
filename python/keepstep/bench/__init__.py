"""``keepstep bench NAME`` and ``keepstep demo``: repeatable measurements. One module per benchmark, by subject."""
