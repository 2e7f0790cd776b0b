"""Tests of PyTorch's that pass with Gloo and cannot pass with keepstep, and why."""

KNOWN = {
    "test_ddp_logging_data_cpu": (
        "DDP's log takes the backend's name from C++, which calls every third-party backend 'custom'"
    ),
}

# Of test_c10d_gloo.py.
KNOWN_OF_GLOO_FILE = {
    "GlooProcessGroupWithDispatchedCollectivesTests.test_all_to_all_single": (
        "it wants an error for tensors that are not contiguous; ours are copied"
    ),
    "GlooProcessGroupWithDispatchedCollectivesTests.test_init_process_group_for_all_backends": (
        "it wants 'gloo' as the name of the group"
    ),
}
