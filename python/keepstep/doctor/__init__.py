"""``keepstep doctor``: can this machine run jobs, and can its peers reach it?"""
