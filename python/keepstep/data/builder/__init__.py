"""``keepstep data build``: from files of text to a corpus of tokens. README.md beside this file says how it works."""
