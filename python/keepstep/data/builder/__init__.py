"""``keepstep data build``: from text files to a token corpus. README.md in this folder explains how it works."""
