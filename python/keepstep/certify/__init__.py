"""``keepstep certify SCRIPT``: runs the user's script through a systematic set of faults; compares bit by bit.

Free of torch. Entry point: `keepstep.certify.__main__`.
"""
