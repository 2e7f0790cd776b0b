"""For all tests: what a process inherits from whoever started them."""

import signal

# Behind `&` of a script SIGINT is ignored, and so it would be in every command that a test starts and sends a Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
