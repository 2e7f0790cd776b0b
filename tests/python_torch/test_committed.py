"""What a commit left: every way of changing it is seen, and what is to be put back comes back bit for bit."""

import io

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from keepstep._errors import KeepstepError
from keepstep.torch.data_parallel import replicas
from keepstep.torch.integrity.bit_flip import flip_bit
from keepstep.torch.recovery.committed import Committed, restored
from keepstep.torch.state import extra_state
from keepstep.torch.state.registry import Registry


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.short = torch.nn.Parameter(torch.randn(8, 40).to(torch.bfloat16).t())  # not contiguous
        self.one = torch.nn.Parameter(torch.tensor(1.5))
        self.none = torch.nn.Parameter(torch.empty(0))
        self.register_buffer("table", torch.arange(1000.0))


def made():
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    registry = Registry()
    registry.add("net", net)
    registry.add("optimizer", optimizer)
    registry.add("count", torch.zeros(1, dtype=torch.int64))
    registry.add("schedule", schedule)
    capsule = {id(buffer) for buffer in net.norm.buffers()}
    committed = Committed(registry, lambda: capsule)
    committed.record()
    return net, optimizer, registry, committed


def bits(registry):
    flat = registry.flatten()
    return {name: bytes(t.contiguous().flatten().view(torch.uint8).tolist()) for name, t in flat.tensors.items()}


def in_place(net, optimizer, registry):
    with torch.no_grad():
        net.one.add_(1)
    return "net/one"


def through_data(net, optimizer, registry):
    net.short.data.mul_(2)
    return "net/short"


def pointer(net, optimizer, registry):
    net.first.weight.data = torch.zeros(32, 64)
    return "net/first.weight"


def one_element_counted(net, optimizer, registry):
    with torch.no_grad():
        net.first.weight[0, 0] = 7  # not one of the bytes that are read
    return "net/first.weight"


def large_buffer(net, optimizer, registry):
    net.table.data.mul_(2)
    return "net/table"


def loose_tensor(net, optimizer, registry):
    registry.objects["count"] += 1
    return "count"


def momentum(net, optimizer, registry):
    optimizer.state[net.first.weight]["exp_avg"].data.mul_(2)
    index = [id(p) for p in net.parameters()].index(id(net.first.weight))
    return f"optimizer/state/{index}/exp_avg"


def state_cleared(net, optimizer, registry):
    optimizer.state.clear()
    return "optimizer/state/0"


def state_assigned(net, optimizer, registry):
    optimizer.state[net.one]["exp_avg"] = torch.zeros(())
    index = [id(p) for p in net.parameters()].index(id(net.one))
    return f"optimizer/state/{index}/exp_avg"


def state_loaded(net, optimizer, registry):
    optimizer.load_state_dict(optimizer.state_dict())
    return "optimizer/state"


def schedule_stepped(net, optimizer, registry):
    registry.objects["schedule"].step()  # the rate stays the same for long
    return "schedule"


CHANGES = [
    in_place, through_data, pointer, one_element_counted, large_buffer, loose_tensor, momentum, state_cleared,
    state_assigned, state_loaded, schedule_stepped,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_seen_and_named(change):
    net, optimizer, registry, committed = made()
    assert committed.changed() is None
    name = change(net, optimizer, registry)
    assert committed.changed() == name
    committed.record()
    assert committed.changed() is None


def test_to_look_at_an_optimizers_state_is_no_change():
    _, optimizer, _, committed = made()
    assert optimizer.state[torch.nn.Parameter(torch.empty(0))] == {}  # which makes an entry
    assert committed.changed() is None


def test_one_flipped_bit_is_left_to_digests():
    net, _, _, committed = made()
    flip_bit(net.first.bias, 16, 5)  # one of the bytes that are read
    assert committed.changed() is None
    flip_bit(net.first.bias, 16, 6)
    assert committed.changed() == "net/first.bias"


def test_memory_that_torch_moved_itself_holds_what_it_held():
    net, _, _, committed = made()
    net.share_memory()  # as a process that is sent the model does
    assert committed.changed() is None
    net.first.weight.data.mul_(2)
    assert committed.changed() == "net/first.weight"


def test_a_parameter_with_other_memory_and_the_same_bytes_was_not_changed():
    net, _, _, committed = made()
    with torch.no_grad():
        net.first.weight.set_(net.first.weight.detach().clone())  # as cuDNN lays the weights of an LSTM out
    assert committed.changed() is None
    net.short.data = net.short.data.clone() * 2
    assert committed.changed() == "net/short"


def test_a_buffer_that_was_assigned_is_named_and_recorded():
    net, _, _, committed = made()
    net.table = net.table * 2
    assert committed.changed() == "net/table"
    committed.record()
    assert committed.changed() is None
    wanted = net.table.clone()
    committed.put_back()
    assert torch.equal(net.table, wanted)


def test_what_forward_changes_is_none_of_it():
    net, _, _, committed = made()
    net.norm(torch.randn(4, 32))
    net.eval()
    assert committed.changed() is None


@pytest.fixture
def ddp_of_torch_2_11(monkeypatch):
    """DDP as a job has it, in a world of one: it broadcasts buffers as that of torch 2.11 does."""

    def sync_buffers(self):
        with torch.no_grad():
            self._assign_modules_buffers()
            self._sync_module_buffers(0)

    original = getattr(DistributedDataParallel.__init__, "__wrapped__", DistributedDataParallel.__init__)
    broadcast = DistributedDataParallel._sync_module_buffers
    monkeypatch.setattr(DistributedDataParallel, "__init__", original)  # `track` has been here, perhaps
    monkeypatch.setattr(DistributedDataParallel, "_sync_module_buffers", getattr(broadcast, "__wrapped__", broadcast))
    monkeypatch.setattr(DistributedDataParallel, "_sync_buffers", sync_buffers)
    replicas.track()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel
    replicas.drop_all()
    dist.destroy_process_group()


def test_what_ddp_broadcasts_before_a_forward_is_no_change_and_hides_none(ddp_of_torch_2_11):
    model = torch.nn.Linear(2, 2)
    model.register_buffer("trend", torch.zeros(1000))
    registry = Registry()
    registry.add("model", model)
    committed = Committed(registry, set)
    replica = ddp_of_torch_2_11(model)
    model.trend = model.trend + 1  # an update did
    committed.record()
    replica(torch.ones(1, 2))
    assert committed.changed() is None
    model.trend[0] = 7  # not one of the bytes that are read
    replica(torch.ones(1, 2))
    assert committed.changed() == "model/trend"


def test_averaged_weights_are_seen_before_the_second_forward_too():
    net, _, _, committed = made()
    assert committed.changed_before_forward() is None
    net.first.weight.data.copy_(torch.randn(32, 64))
    assert committed.changed_before_forward() == "net/first.weight"


def test_modes_options_and_addresses_are_put_back_where_the_function_was_left():
    net, optimizer, registry, committed = made()
    before, weight = bits(registry), net.first.weight.data_ptr()
    net.eval()
    net.requires_grad_(False)
    net.first.weight.data = torch.zeros(32, 64)
    optimizer.param_groups[0].update(lr=5.0, betas=(0.0, 0.0), train_mode=False)
    committed.put_back()
    assert all(module.training for module in net.modules())
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert net.first.weight.data_ptr() == weight and bits(registry) == before
    assert optimizer.param_groups[0]["lr"] == 0.1 and optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert committed.changed() is None


def with_a_tensor_as_rate():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    registry = Registry()
    registry.add("optimizer", optimizer)
    committed = Committed(registry, set)
    committed.record()
    return optimizer.param_groups[0], registry, committed


def test_an_option_that_is_a_tensor_is_as_it_was_after_a_restored_section():
    group, registry, committed = with_a_tensor_as_rate()
    with restored(registry):
        group["lr"].mul_(0.5)
    assert committed.late_change() is None
    group["lr"].mul_(0.5)
    assert committed.late_change() == "the optimizer's option 'lr'"


@pytest.mark.parametrize("how", ["in place", "another"])
def test_an_option_that_is_a_tensor_is_put_back_and_named_like_others(how):
    group, _, committed = with_a_tensor_as_rate()
    rate = group["lr"]
    if how == "in place":
        rate.mul_(0.5)
    else:
        group["lr"] = torch.tensor(0.05)
    assert committed.late_change() == "the optimizer's option 'lr'" and committed.changed() is None
    committed.put_back()
    assert group["lr"] is rate and float(rate) == float(torch.tensor(0.1))
    committed.record(manner=False)
    assert committed.late_change() is None


def test_a_newcomer_takes_over_modes_and_what_needs_gradients():
    net, _, _, committed = made()
    net.norm.eval()
    net.one.requires_grad_(False)
    committed.record()
    fresh, _, _, other = made()
    other.load(committed.value())
    assert [m.training for m in fresh.modules()] == [m.training for m in net.modules()]
    assert [p.requires_grad for p in fresh.parameters()] == [p.requires_grad for p in net.parameters()]
    other.load({"training": "01", "requires_grad": "", "wrapped": ""})  # of other modules: nothing happens
    assert not fresh.norm.training


def pointed_elsewhere(net, optimizer, registry):
    net.first.weight.data = torch.rand(32, 64)
    return "net/first.weight"


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("change", [pointed_elsewhere, one_element_counted, loose_tensor], ids=lambda c: c.__name__)
def test_what_an_entry_changes_before_its_loop_is_named_where_training_goes_on(change, wrapped):
    net, optimizer, registry, committed = made()
    change(net, optimizer, registry)
    committed.begin_loop(0, world=2, until=10, version=0)  # each entry does it before the first step
    committed.left()
    name = change(net, optimizer, registry)
    if wrapped:
        with committed.as_wrapped(net):
            pass
    with pytest.raises(KeepstepError, match=f"'{name}' was changed .* this entry of the function, which begins at"):
        committed.begin_loop(5, world=2, until=10, version=5)


def test_an_entry_may_wrap_and_lay_out_what_it_does_not_change():
    net, _, _, committed = made()
    committed.begin_loop(0, world=2, until=10, version=0)
    with committed.as_wrapped(net), torch.no_grad():
        net.first.weight.copy_(net.first.weight.clone())  # DDP made by hand broadcasts so
    net.first.weight.data = net.first.weight.data.t().contiguous().t()
    place = net.first.weight.data_ptr()
    committed.begin_loop(5, world=2, until=10, version=5)
    assert net.first.weight.data_ptr() == place and committed.changed() is None


def set_for_this_entry(net, optimizer, rate=0.05):
    net.norm.eval()
    net.one.requires_grad_(False)
    optimizer.param_groups[0]["lr"] = rate


def as_set(net, optimizer, rate=0.05):
    return not net.norm.training and not net.one.requires_grad and optimizer.param_groups[0]["lr"] == rate


def test_what_an_entry_does_to_modes_and_options_does_not_hold_in_the_middle_of_a_loop():
    net, optimizer, _, committed = made()
    committed.begin_loop(0, world=2, until=10, version=0)
    committed.commit()
    committed.left()
    set_for_this_entry(net, optimizer)
    committed.begin_loop(5, world=2, until=10, version=5)
    assert net.norm.training and net.one.requires_grad and optimizer.param_groups[0]["lr"] == 0.1
    assert committed.late_change() is None


def newcomer_of(committed):
    """What hydration makes of another process; rates come with the optimizer."""
    net, optimizer, _, other = made()
    other.load(committed.value())
    other.record()
    return net, optimizer, other


@pytest.mark.parametrize("why", ["another world", "a start from a checkpoint"])
def test_what_an_entry_sets_for_a_start_or_a_world_holds_until_its_first_commit_also_after_a_fault(why):
    net, optimizer, _, committed = made()
    committed.begin_loop(0, world=8 if why == "another world" else 4, until=10, version=0)
    committed.commit()
    if why != "another world":
        committed.start()
    for _ in range(2):  # the second time after a fault in the first step
        set_for_this_entry(net, optimizer)
        committed.begin_loop(5, world=4, until=10, version=5)
        assert as_set(net, optimizer)
        committed.begin_step()
        assert committed.left_mode() is None
        committed.left()
        committed.record()
        assert not as_set(net, optimizer)
    replaced, its_optimizer, other = newcomer_of(committed)
    set_for_this_entry(replaced, its_optimizer)
    other.begin_loop(5, world=4, until=10, version=5)
    assert as_set(replaced, its_optimizer)
    set_for_this_entry(net, optimizer)
    committed.begin_loop(5, world=4, until=10, version=5)
    committed.commit()
    committed.left()
    set_for_this_entry(net, optimizer, 7.0)
    committed.begin_loop(6, world=4, until=10, version=6)
    assert as_set(net, optimizer)


def test_a_newcomer_of_an_old_checkpoint_takes_what_its_entry_sets():
    net, _, _, committed = made()
    committed.begin_loop(0, world=2, until=10, version=0)
    committed.commit()
    old = committed.value()
    del old["committed_in"]
    committed.load(old)
    net.eval()
    committed.begin_loop(5, world=2, until=10, version=5)
    assert not net.training


class Epochs:
    """A function with one loop per epoch of 4 steps, and what it does before a loop and after it."""

    def __init__(self, before=None, behind=None, from_the_first=True, in_commit=None):
        self.net, self.optimizer, _, self.committed = made()
        self._before, self._behind, self._from_the_first = before, behind, from_the_first
        self._in_commit = in_commit
        self.version = 0
        self.used = {}  # by step: rate, and whether `one` needs gradients

    @property
    def group(self):
        return self.optimizer.param_groups[0]

    def enter(self, until, epochs=4):
        """To the beginning of the step after `until`; with a half: to the end of the loop before that."""
        for epoch in range(0 if self._from_the_first else self.version // 4, epochs):
            if self._before:
                self._before(self, epoch)
            self.committed.begin_loop(self.version, 2, 4 * (epoch + 1), version=self.version)
            while self.version < 4 * (epoch + 1):
                self.committed.begin_step()
                if self.version == until:
                    return
                self.version += 1
                assert self.committed.left_mode() is None
                self.used[self.version] = self.group["lr"], self.net.one.requires_grad, self.net.norm.training
                if self._in_commit:
                    self._in_commit(self)
                self.committed.commit()
            if self.version == until + 0.5:
                return
            if self._behind:
                self._behind(self, epoch)

    def leave(self):
        self.committed.left()
        self.committed.record()


def rate_by_epoch(run, epoch):
    run.group["lr"] = 0.1 * 0.5 ** (epoch // 2)


def halves(run, epoch):
    run.group["lr"] *= 0.5


def thaws(run, epoch):
    if epoch == 0:
        run.net.one.requires_grad_(False)
        run.net.norm.eval()
    if epoch == 2:
        run.net.one.requires_grad_(True)
        run.net.norm.train()


def warm_restart(run, epoch):
    run.group["lr"] = 0.1


def decays(run):
    run.group["lr"] *= 0.9


SHAPES = {
    "a rate by epoch": {"before": rate_by_epoch},
    "a rate by epoch, from that epoch": {"before": rate_by_epoch, "from_the_first": False},
    "a rate by epoch, behind the loop": {"behind": lambda run, epoch: rate_by_epoch(run, epoch + 1)},
    "a rate that is halved after the loop": {"behind": halves},
    "a rate that is halved in front of the loop": {"before": halves},
    "the same, from the epoch that is due": {"before": halves, "from_the_first": False},
    "something thaws": {"before": thaws},
    "something thaws, from that epoch": {"before": thaws, "from_the_first": False},
    "a rate that commits lower, set again": {"before": warm_restart, "in_commit": decays},
    "the same, from that epoch": {"before": warm_restart, "in_commit": decays, "from_the_first": False},
    "a rate that only commits lower": {"in_commit": decays},
}


@pytest.mark.parametrize("left_at", [0, 2, 3.5, 4, 6, 7.5, 8, 9, 12, 14])
@pytest.mark.parametrize("shape", SHAPES)
def test_settings_between_loops_are_those_of_an_undisturbed_run(shape, left_at):
    calm = Epochs(**SHAPES[shape])
    calm.enter(16)
    left = Epochs(**SHAPES[shape])
    left.committed.record()
    left.enter(left_at)
    for _ in range(2):
        left.leave()
        left.enter(left.version)
    left.leave()
    left.enter(16)
    assert left.used == calm.used and len(left.used) == 16


@pytest.mark.parametrize("shape", [s for s in SHAPES if "from that" not in s and "from the" not in s])
def test_a_newcomer_sets_between_loops_what_survivors_set(shape):
    calm = Epochs(**SHAPES[shape])
    calm.enter(16)
    for left_at in (4, 8, 9):
        gone = Epochs(**SHAPES[shape])
        gone.enter(left_at)
        gone.leave()
        new = Epochs(**SHAPES[shape])
        new.committed.load(gone.committed.value())
        new.group["lr"] = gone.group["lr"]
        new.committed.record()
        new.version = gone.version
        new.enter(16)
        assert gone.used | new.used == calm.used


def test_a_rate_that_is_halved_behind_a_loop_that_is_left_out_is_named():
    run = Epochs(behind=halves, from_the_first=False)
    run.enter(8)
    run.leave()
    with pytest.raises(KeepstepError, match=r"option 'lr' is another one in front of the loop that begins at step 8"):
        run.enter(9)


def test_what_changes_behind_a_loop_that_was_left_by_break_is_named():
    _, optimizer, _, committed = made()
    committed.begin_loop(0, 2, 10, version=0)
    committed.commit()
    optimizer.param_groups[0]["lr"] *= 0.5
    with pytest.raises(KeepstepError, match=r"'lr' was changed after .* left at step 5, before .*\(last_step=5\)"):
        committed.begin_loop(5, 2, 10, version=5)


def test_a_validation_between_loops_that_leaves_its_mode_is_named_and_one_layers_mode_is_not():
    net, _, _, committed = made()
    committed.begin_loop(0, 2, 5, version=0)
    committed.commit()
    net.norm.eval()
    committed.begin_loop(5, 2, 10, version=5)
    committed.begin_step()
    assert committed.left_mode() is None
    net.eval()
    committed.begin_loop(5, 2, 10, version=5)
    committed.begin_step()
    assert committed.left_mode() == "net"


def test_what_no_optimizer_trains_may_change_its_mode_until_it_computes_in_a_step():
    net, _, registry, committed = made()
    average = torch.optim.swa_utils.AveragedModel(net)
    registry.add("average", average)
    committed.begin_loop(0, 2, 5, version=0)
    committed.commit()
    committed.begin_step()
    average.eval()
    for _ in range(2):  # after a commit, and between two loops
        committed.begin_step()
        assert committed.left_mode() is None
        assert committed.left_mode_of_untrained(net) is None
        assert committed.left_mode_of_untrained(average) == "average"
        assert committed.left_mode_of_untrained(average.module) == "average/module"
        committed.begin_loop(5, 2, 10, version=5)
    committed.left()
    assert average.training and average.module.norm.training
    for late in (True, False):
        committed.begin_loop(5, 2, 10, version=5)
        if late:
            average.eval()
        committed.begin_step()
        average.eval()
        committed.commit()
        committed.begin_step()
        assert (committed.left_mode_of_untrained(average) is not None) == late  # later, too: a fault undoes it
        committed.left()
        assert average.training == late


def test_protected_state_that_changes_between_loops_is_named_there():
    net, _, _, committed = made()
    committed.begin_loop(0, 2, 5, version=0)
    committed.commit()
    net.short.data.mul_(2)
    with pytest.raises(KeepstepError, match=r"'net/short' was changed .*what follows the loop that ended with step 5"):
        committed.begin_loop(5, 2, 10, version=5)


def test_ddp_is_made_with_the_parameters_that_it_was_made_with_before():
    net, _, _, committed = made()
    with committed.as_wrapped(net):
        pass
    net.requires_grad_(False)
    net.one.requires_grad_(True)
    committed.record()  # the commit leaves all but one frozen
    net.norm.weight.requires_grad_(True)  # and this entry of the function thaws another
    with committed.as_wrapped(net):
        assert all(parameter.requires_grad for parameter in net.parameters())
    thawed = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    assert thawed == ["one", "norm.weight"]


def test_ddp_that_is_made_again_in_the_loop_waits_for_what_is_not_frozen_now():
    net, _, _, committed = made()
    with committed.as_wrapped(net):
        pass
    committed.begin_loop(0, world=2, until=10, version=0)
    net.first.requires_grad_(False)
    committed.commit()
    with committed.as_wrapped(net):
        assert not net.first.weight.requires_grad and net.one.requires_grad
    committed.left()  # before a commit: the entry makes it as it was, and then comes here again
    with committed.as_wrapped(net):
        assert net.first.weight.requires_grad


@pytest.mark.parametrize("fails", [False, True])
def test_a_restored_section_leaves_nothing_behind(fails):
    net, optimizer, registry, _ = made()
    before, places = bits(registry), [parameter.data_ptr() for parameter in net.parameters()]
    averaged = [torch.randn_like(parameter) for parameter in net.parameters()]
    kept = [tensor.clone() for tensor in averaged]
    with pytest.raises(KeyboardInterrupt if fails else ZeroDivisionError), restored(registry):
        for parameter, other in zip(net.parameters(), averaged, strict=True):
            parameter.data = other
        net.eval()
        net.norm.running_mean = torch.ones(32)
        net.table.zero_()
        net.requires_grad_(False)
        optimizer.param_groups[0]["train_mode"] = False
        optimizer.param_groups[0]["lr"] = 3.0
        optimizer.state[net.one]["z"] = torch.ones(())
        optimizer.state[net.first.bias]["exp_avg"].zero_()
        registry.objects["count"].fill_(9)
        raise KeyboardInterrupt if fails else ZeroDivisionError
    assert bits(registry) == before
    assert [parameter.data_ptr() for parameter in net.parameters()] == places
    assert all(torch.equal(a, b) for a, b in zip(averaged, kept, strict=True)), "what was swapped in was written to"
    assert all(module.training for module in net.modules()) and all(p.requires_grad for p in net.parameters())
    assert optimizer.param_groups[0]["lr"] == 0.1 and "z" not in optimizer.state[net.one]


class Counting(torch.nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def test_a_restored_section_leaves_extra_state_as_it_was():
    registry = Registry()
    model = torch.nn.Sequential(Counting(2, 2))
    registry.add("model", model)
    model(torch.ones(2))
    with restored(registry):
        model(torch.ones(2))
    assert model[0].calls == 1


VALUES = [
    None, {"a": (1, [2.5, float("nan")]), 3: "x"}, b"\x00\xff", torch.arange(6).reshape(2, 3).to(torch.bfloat16),
    torch.empty(0), torch.tensor(True), {"amax": [torch.ones(2), {"n": torch.tensor(1e-45)}]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_extra_state_comes_back_as_it_was(value):
    import json

    back = extra_state.decoded(json.loads(json.dumps(extra_state.encoded("x", value))))
    assert repr(back) == repr(value)
    if isinstance(value, torch.Tensor):
        assert back.dtype == value.dtype and torch.equal(back, value)


def test_streams_are_extra_state_and_other_objects_are_named():
    assert extra_state.decoded(extra_state.encoded("x", io.BytesIO(b"abc"))).getvalue() == b"abc"
    with pytest.raises(KeepstepError, match=r"net/odd.lock.*object"):
        extra_state.encoded("net/odd", {"lock": object()})


def test_modes_are_kept_as_they_were_before_not_as_the_commit_left_them():
    net, _, _, committed = made()
    net.first.weight.requires_grad_(False)
    with committed.modes_kept():
        net.eval()
        net.requires_grad_(True)
    assert net.training and net.norm.training
    assert not net.first.weight.requires_grad and net.one.requires_grad
