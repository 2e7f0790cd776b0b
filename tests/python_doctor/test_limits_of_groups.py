"""CPUs and processes, as control groups of either version and this user's limits bound them."""

import pytest
from surroundings import only, system

from keepstep.doctor import processor, tasks
from keepstep.doctor.finding import fine, warning

V2 = {"proc/self/cgroup": "0::/pod/box\n"}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/box\n3:pids:/box\n0::/\n"}


@pytest.mark.parametrize(
    "files, cpus",
    [
        ({}, None),
        (V2, None),
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "max 100000"}, None),
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "150000 100000"}, 1.5),
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "800000 100000", "sys/fs/cgroup/pod/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),  # a namespace of its own
        (V1 | {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "1"}, None),
        (V1 | {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "30", "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "10"}, 3),
    ],
)
def test_the_narrowest_quota_of_all_groups_counts(tmp_path, files, cpus):
    assert processor.quota(system(tmp_path, files)) == cpus


def test_a_quota_below_the_ranks_is_a_warning(tmp_path):
    narrow = system(tmp_path, V2 | {"sys/fs/cgroup/pod/box/cpu.max": "150000 100000"})
    assert processor.cores(narrow, 8, 4) == [
        warning(
            "CPUs",
            "8 CPUs, but this control group may use the time of 1.5: 4 ranks would stand still in turns",
            "raise the limit (docker run --cpus, Kubernetes' resources.limits.cpu), or start fewer ranks",
        )
    ]
    assert processor.cores(narrow, 8, 1) == [
        fine("CPUs", "8 CPUs, of which a control group allows the time of 1.5, for 1 rank")
    ]


def test_more_ranks_than_cpus_are_a_warning(tmp_path):
    finding = only(processor.cores(system(tmp_path, {}), 1, 2))
    assert finding.found == "1 CPU for 2 ranks: ranks wait for each other's turns"
    assert finding.level == "warning"
    assert only(processor.cores(system(tmp_path, {}), 2, 2)).level == "fine"


def test_missing_instructions_are_named_with_what_they_cost(tmp_path):
    old = system(tmp_path, {"proc/cpuinfo": "processor: 0\nflags\t\t: fpu sse2 avx2\n"})
    assert only(processor.features(old, "x86_64")) == warning(
        "CPU features",
        "no aes, pclmulqdq: encryption between nodes is many times slower",
        "a virtual machine must pass the CPU's features on (CPU model `host`)",
    )


def test_a_modern_cpu_is_fine_and_another_architecture_is_not(tmp_path):
    new = system(tmp_path, {"proc/cpuinfo": "flags : avx avx2 aes pclmulqdq avx512f\n"})
    assert processor.features(new, "x86_64") == [fine("CPU features", "avx2, aes, pclmulqdq, avx512f")]
    assert only(processor.features(new, "aarch64")).found == "this is aarch64"


NEED = "4 ranks with their launcher have about 160 processes and threads"


def test_few_processes_left_in_a_group_are_a_warning(tmp_path):
    full = system(
        tmp_path, V2 | {"sys/fs/cgroup/pod/pids.max": "200", "sys/fs/cgroup/pod/pids.current": "150"}
    )  # fmt: skip
    assert tasks.tasks(full, 4, None, 0) == [
        warning(
            "processes",
            "the control group's pids.max (docker run --pids-limit, Kubernetes' podPidsLimit) is 200, 50 are left, "
            f"and {NEED}",
            "raise it to 310 or more: forks fail at the limit",
        )
    ]


def test_the_user_s_own_limit_counts_with_what_the_user_has(tmp_path):
    none = system(tmp_path, {})
    assert tasks.tasks(none, 4, None, 0) == [fine("processes", f"no limit; {NEED}")]
    assert tasks.tasks(none, 4, 1000, 840) == [fine("processes", f"160 of 1000 left; {NEED}")]
    assert only(tasks.tasks(none, 4, 1000, 841)).level == "warning"
    assert only(tasks.tasks(none, 4, 1000, 841)).advice.startswith("raise it to 1001 or more")


def test_the_limit_with_the_least_left_counts(tmp_path):
    files = V1 | {"sys/fs/cgroup/pids/box/pids.max": "200", "sys/fs/cgroup/pids/box/pids.current": "150"}
    group = system(tmp_path, files)
    assert only(tasks.tasks(group, 1, 1000, 100)).found.startswith("the control group's pids.max")
    assert only(tasks.tasks(group, 1, 1000, 980)).found.startswith("the user's limit (ulimit -u) is 1000, 20 are left")


def test_threads_of_a_user_are_counted(tmp_path):
    status = "Name:\tx\nUid:\t{}\t{}\t0\t0\nThreads:\t{}\n"
    files = {
        "proc/1/status": status.format(0, 0, 1),
        "proc/7/status": status.format(1000, 0, 20),
        "proc/8/status": status.format(1000, 1000, 3),
        "proc/cpuinfo": "",
    }
    assert tasks.tasks_of(system(tmp_path, files), 1000) == 23
