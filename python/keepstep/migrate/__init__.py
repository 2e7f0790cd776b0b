"""``keepstep migrate FILE``: reads the launch of another launcher, and prints the keepstep one with what changed.

Free of torch. Entry point: `keepstep.migrate.__main__`.
"""
