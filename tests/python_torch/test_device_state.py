"""State on devices, as far as a machine without a GPU can tell: bytes, places, refusals."""

import pytest
import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.integrity.checks import digests
from keepstep.torch.state.registry import Registry
from keepstep.torch.tensors import cuda
from keepstep.torch.tensors.memory import raw_bytes, region


def test_bytes_come_in_the_order_asked_for_whatever_the_layout():
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    tensors = [base.t(), torch.tensor(7), torch.tensor([True, False]), torch.empty(0), base.to(torch.bfloat16)]
    assert raw_bytes(tensors) == [bytes(t.contiguous().view(-1).view(torch.uint8).tolist()) for t in tensors]


def test_a_region_names_its_device():
    tensor = torch.zeros(5, dtype=torch.float64)
    assert region(tensor) == (tensor.data_ptr(), 40, -1)
    with pytest.raises(KeepstepError, match="meta"):
        region(torch.zeros(5, device="meta"))


def test_what_no_peer_could_be_given_is_refused_by_name():
    registry = Registry()
    registry.add("model", torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(KeepstepError, match=r"'model/weight' is on meta"):
        registry.check_carried()
    registry = Registry()
    registry.add("table", torch.eye(3).to_sparse())
    with pytest.raises(KeepstepError, match=r"'table' has the layout torch.sparse_coo"):
        registry.check_carried()


@pytest.mark.parametrize(("options", "on_device"), [({}, False), ({"capturable": True}, True), ({"fused": True}, True)])
def test_step_counters_of_a_newcomer_are_where_torch_would_have_them(options, on_device):
    # "meta" stands for a device that is not main memory.
    parameter = torch.nn.Parameter(torch.zeros(3, device="meta"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.param_groups[0].update(options)
    registry = Registry()
    registry.add("optimizer", optimizer)
    registry.allocate("optimizer/state/0/step", torch.float32, [])
    registry.allocate("optimizer/state/0/exp_avg", torch.float32, [3])
    state = optimizer.state[parameter]
    assert state["step"].device.type == ("meta" if on_device else "cpu")
    assert state["exp_avg"].device.type == "meta"


def test_digests_cover_every_tensor():
    registry = Registry()
    model = torch.nn.Linear(3, 2)
    registry.add("model", model)
    found = digests(registry, set())
    registry.add("strided", torch.arange(1000.0).view(50, 20).t())
    expected = torch.arange(1000.0).view(50, 20).t().contiguous()
    assert digests(registry, set())["strided"] == _engine.digest(expected.data_ptr(), 4000)
    assert found["model/weight"] == _engine.digest(model.weight.data_ptr(), 24)
    assert set(found) == {"model/weight", "model/bias"}


def test_without_cuda_nothing_waits_and_no_error_is_blamed_on_a_gpu():
    cuda.synchronize()
    cuda.end_if_broken(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert cuda.devices_of([torch.zeros(1)]) == []


def test_an_open_device_file_of_cuda_is_seen_whoever_opened_it(tmp_path):
    from keepstep._preload import cuda_is_open

    (tmp_path / "0").symlink_to("/dev/null")
    (tmp_path / "1").symlink_to("/dev/nvidiactl")  # asking for the driver's version opens it, too
    assert not cuda_is_open(str(tmp_path))
    (tmp_path / "2").symlink_to("/dev/nvidia-uvm")
    assert cuda_is_open(str(tmp_path))
