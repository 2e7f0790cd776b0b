"""``keepstep doctor``: can this machine run jobs, and do its peers reach it?"""
