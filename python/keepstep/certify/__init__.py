"""``keepstep certify SCRIPT``: the user's own script through a systematic set of faults, each compared bit by bit.

Free of torch. Entrance: `keepstep.certify.__main__`.
"""
