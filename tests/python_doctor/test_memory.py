"""Room for ranks, forks, and /dev/shm."""

from surroundings import only, system

from keepstep.doctor import memory
from keepstep.doctor.finding import fine, warning

MEMINFO = "MemTotal:  16384 kB\nSwapTotal: {} kB\nCommitLimit: 4194304 kB\nCommitted_AS: 3145728 kB\n"


def test_ranks_with_torch_must_fit():
    assert memory.room(4 * memory.RANK_BYTES, 4) == []
    assert memory.room(4 * memory.RANK_BYTES - 1, 4) == [
        warning(
            "memory",
            "800 MiB available, and 4 ranks with torch take about 800 MiB before any model",
            "free memory, raise the container's limit (docker run --memory), or start fewer ranks",
        )
    ]


def test_strict_overcommit_is_a_warning(tmp_path):
    files = {"proc/sys/vm/overcommit_memory": "2\n", "proc/meminfo": MEMINFO.format(0)}
    assert memory.forks(system(tmp_path, files)) == [
        warning(
            "overcommit",
            "vm.overcommit_memory is 2 and 1.0 GiB may still be promised: forks of large processes (ranks, DataLoader "
            "workers) fail beyond that",
            "sysctl vm.overcommit_memory=0",
        )
    ]


def test_usual_overcommit_is_fine_and_swap_is_told(tmp_path):
    files = {"proc/sys/vm/overcommit_memory": "0\n", "proc/meminfo": MEMINFO.format(2 << 20)}
    assert memory.forks(system(tmp_path, files)) == [
        fine("overcommit", "processes can fork, however large they are; 2.0 GiB of swap")
    ]


def test_a_container_s_default_dev_shm_is_a_warning():
    assert memory.small_dev_shm((64 << 20) + 1) == []
    finding = only(memory.small_dev_shm(64 << 20))
    assert finding.level == "warning"
    assert finding.found.startswith("it has 64 MiB, a container's default: DataLoader workers of torch pass")
    assert finding.advice.startswith("docker run --shm-size=1g")


def test_files_of_dead_loaders_are_named_and_those_of_living_ones_are_not(tmp_path):
    files = {
        "dev/shm/torch_41_1_2": "x" * (3 << 20),
        "dev/shm/torch_41_7_3": "x" * (1 << 20),
        "dev/shm/torch_42_1_2": "x",
        "dev/shm/other": "x",
        "proc/42/stat": "",
    }
    assert memory.leftovers(system(tmp_path, files)) == [
        warning(
            "/dev/shm",
            "4 MiB in files of torch whose processes (41) are not there any more",
            "unless another container shares this /dev/shm: rm /dev/shm/torch_41_*",
        )
    ]
    assert memory.leftovers(system(tmp_path / "empty", {"proc/42/stat": ""})) == []
