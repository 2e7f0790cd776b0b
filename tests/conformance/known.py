"""Tests of PyTorch's suite that pass with Gloo and cannot pass with any backend that PyTorch does not know by name."""

KNOWN = {
    "test_ddp_logging_data_cpu": (
        "DDP's log takes the backend's name from C++, which calls every third-party backend 'custom'"
    ),
}
