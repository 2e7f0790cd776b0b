"""GPUs as driver, torch and job see them; there is none here."""

from surroundings import only, probe, system

from keepstep.doctor import gpus
from keepstep.doctor.finding import error, fine, warning

DRIVER = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\nGCC:\n",
    "proc/driver/nvidia/gpus/0000:01:00.0": None,
    "proc/driver/nvidia/gpus/0000:02:00.0": None,
}
TWO = ["NVIDIA H100", "NVIDIA H100"]


def test_no_gpu_is_fine(tmp_path):
    finding = only(gpus.gpus(system(tmp_path, {}), probe(), 0))
    assert finding == fine("GPUs", "none, and no NVIDIA driver: ranks compute on CPUs")


def test_gpus_that_all_see_are_fine(tmp_path):
    found = probe(torch={"gpus": TWO}, unfit=[])
    assert gpus.gpus(system(tmp_path, DRIVER), found, 2) == [
        fine("GPUs", "2 x NVIDIA H100, driver 570.86.15, all well by NVML")
    ]


def test_the_open_driver_s_version_is_read_too(tmp_path):
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n"
    files = {"proc/driver/nvidia/version": text}
    assert "driver 575.57.08" in only(gpus.gpus(system(tmp_path, files), probe(torch={"gpus": TWO}, unfit=[]), 2)).found


def test_hidden_gpus_are_fine(tmp_path):
    assert gpus.gpus(system(tmp_path, DRIVER), probe(), 0) == [
        fine("GPUs", "2 GPUs, hidden from jobs by CUDA_VISIBLE_DEVICES")
    ]


def test_a_torch_for_cpus_beside_gpus_is_a_warning(tmp_path):
    finding = only(gpus.gpus(system(tmp_path, DRIVER), probe(torch={"cuda": None}), 2))
    assert finding.level == "warning"
    assert finding.found == "2 GPUs, driver 570.86.15, and a torch that is built for CPUs only"


def test_gpus_that_torch_cannot_use_are_an_error(tmp_path):
    found = probe(torch={"cuda_problem": "RuntimeError: the driver is too old"})
    assert gpus.gpus(system(tmp_path, DRIVER), found, 2) == [
        error(
            "GPUs",
            "2 GPUs, driver 570.86.15, and torch (CUDA 13.2) cannot use them: RuntimeError: the driver is too old",
            "in a container start it with --gpus all; else a newer driver, or a torch for an older CUDA",
        )
    ]


def test_an_unfit_gpu_is_an_error_and_a_missing_one_a_warning(tmp_path):
    found = probe(
        torch={"gpus": TWO[:1], "version": "2.13.1"}, unfit=[["gpu 0 (GPU-8f2c): memory", "3 errors", "none"]]
    )  # fmt: skip
    assert gpus.gpus(system(tmp_path, DRIVER), found, 2) == [
        error("GPUs", "gpu 0 (GPU-8f2c): memory: 3 errors; a rank needs none"),
        warning(
            "GPUs", "torch sees 1 GPU and 2 are visible", "does CUDA_VISIBLE_DEVICES name some that are not there?"
        ),
        warning("GPUs", "torch 2.13.1 cannot keep state on a GPU through a fault", "torch 2.14 or newer"),
    ]
