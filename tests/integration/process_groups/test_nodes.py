"""Two nodes on one machine, in network namespaces that share nothing but a veth pair."""

import pytest

from keepstep.bench.comm.transport import PLANES, Bench
from keepstep.bench.harness import namespaces
from keepstep.bench.harness.environment import BenchError, bench_program


@pytest.fixture
def nodes():
    reason = namespaces.why_not()
    if reason is not None:
        pytest.skip(reason)
    try:
        bench_program("keepstep_nodes_bench")
    except BenchError as error:
        pytest.skip(str(error))
    with namespaces.two_nodes() as pair:
        yield pair


@pytest.mark.parametrize("ranks_per_node", [1, 2])
@pytest.mark.parametrize(("size", "plane"), [(4096, "tls"), (16 << 20, "tls"), (16 << 20, "plain")])
def test_ranks_in_two_namespaces_sum_up(nodes, ranks_per_node, size, plane):
    result = Bench(nodes, ranks_per_node, repeats=3).keepstep("all_reduce", size, 3, 2, ranks_per_node, plane)
    assert result["fastest"] > 0


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("operation", ["stream", "messages"])
def test_a_connection_between_two_namespaces_carries_all_its_bytes(nodes, operation, plane):
    assert Bench(nodes, 1, repeats=1).keepstep(operation, 1 << 20, 50, 1, 1, plane)["bytes_per_second"] > 0


def test_openssl_by_itself_can_be_compared_with(nodes):
    assert Bench(nodes, 1, repeats=1).openssl(50) > 0
