"""Two nodes on one machine, in network namespaces that share nothing but a veth pair."""

import pytest

from keepstep.bench import namespaces
from keepstep.bench.environment import BenchError, bench_program
from keepstep.bench.transport import Bench


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
@pytest.mark.parametrize("size", [4096, 16 << 20])
def test_ranks_in_two_namespaces_sum_up(nodes, ranks_per_node, size):
    result = Bench(nodes, ranks_per_node, repeats=3).keepstep("all_reduce", size, 3, 2, ranks_per_node)
    assert result["fastest"] > 0


def test_a_stream_between_two_namespaces_carries_all_its_bytes(nodes):
    assert Bench(nodes, 1, repeats=1).keepstep("stream", 1 << 20, 50, 1, 1)["bytes_per_second"] > 0
