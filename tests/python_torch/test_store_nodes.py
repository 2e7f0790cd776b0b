"""Which nodes a rootless Store spans, from the environment."""

import pytest

from keepstep import KeepstepError
from keepstep.torch.distributed.store_nodes import StoreNodes, store_nodes

NAMES = ("KEEPSTEP_STORE", "KEEPSTEP_STORE_NODE", "GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "LOCAL_WORLD_SIZE",
         "SLURM_NODEID")  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    def set_all(**values):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize(
    "values", [{}, {"GROUP_WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "4"}, {"SLURM_STEP_NUM_NODES": "1"}]
)
def test_one_node(environment, values):
    environment(KEEPSTEP_STORE="1", **values)
    assert store_nodes(4) is None


@pytest.mark.parametrize(
    "values", [{"GROUP_WORLD_SIZE": "2"}, {"LOCAL_WORLD_SIZE": "3"}, {"SLURM_STEP_NUM_NODES": "2"}]
)
def test_several_nodes_need_their_addresses(environment, values):
    environment(KEEPSTEP_STORE="1", **values)
    with pytest.raises(KeepstepError, match=r"4 ranks run on 2 nodes; list an address of each.*KEEPSTEP_TOKEN"):
        store_nodes(4)


def test_a_node_finds_its_own_address(environment):
    environment(KEEPSTEP_STORE="192.0.2.1:29411, localhost:29412", GROUP_WORLD_SIZE="2")
    nodes = store_nodes(4)
    assert nodes.place == 1
    assert nodes.addresses[0] == "192.0.2.1:29411"
    assert nodes.addresses[1] in ("127.0.0.1:29412", "[::1]:29412")


def test_the_place_can_be_given(environment):
    both = "127.0.0.1:29411,127.0.0.1:29412"
    environment(KEEPSTEP_STORE=both)
    with pytest.raises(KeepstepError, match=r"2 of its addresses are of this machine.*set KEEPSTEP_STORE_NODE"):
        store_nodes(2)
    environment(KEEPSTEP_STORE=both, SLURM_NODEID="1")
    assert store_nodes(2) == StoreNodes(("127.0.0.1:29411", "127.0.0.1:29412"), 1)
    environment(KEEPSTEP_STORE=both, SLURM_NODEID="1", KEEPSTEP_STORE_NODE="0")
    assert store_nodes(2).place == 0
    environment(KEEPSTEP_STORE="192.0.2.1:29411")
    with pytest.raises(KeepstepError, match="none of its addresses is of this machine"):
        store_nodes(2)


@pytest.mark.parametrize(
    ("store", "place", "message"),
    [
        ("localhost:29411,:29412", "0", "has ':29412'; give HOST:PORT"),
        ("localhost:29411,a:b", "0", "has 'a:b'; give HOST:PORT"),
        ("localhost:29411,localhost:70000", "0", "has 'localhost:70000'"),
        ("localhost:29411,no.such.name.invalid:29412", "0", "no.such.name.invalid is not known here"),
        ("localhost:29411,localhost:29412", "2", "KEEPSTEP_STORE_NODE is '2'; .* 0 to 1"),
        ("localhost:29411", "0", "has 1 addresses, and the 4 ranks run on 2 nodes"),
        ("a,b", "0", "has 'a'; give HOST:PORT"),
        ("a..b:1,localhost:2", "0", r"a\.\.b is not known here"),
        ("localhost:²,localhost:2", "0", "has 'localhost:²'"),
        ("0.0.0.0:1,localhost:2", "0", r"has '0\.0\.0\.0:1'"),
        ("127.0.0.1:1,127.0.0.1:1", "0", r"the address of '127\.0\.0\.1:1' twice"),
    ],
)
def test_mistakes(environment, store, place, message):
    environment(KEEPSTEP_STORE=store, KEEPSTEP_STORE_NODE=place, GROUP_WORLD_SIZE="2")
    with pytest.raises(KeepstepError, match=message):
        store_nodes(4)
