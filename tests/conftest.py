"""For all tests: what a process inherits from whoever started them."""

import signal
import sys
from pathlib import Path

# Behind `&` of a script SIGINT is ignored, and so it would be in every command that a test starts and sends a Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path.insert(0, str(Path(__file__).resolve().parent / "servers"))
pytest_plugins = ("s3_servers",)  # the fixtures versitygw and minio
