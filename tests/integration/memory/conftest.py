import pytest

from memory_nodes import Node


@pytest.fixture
def nodes():
    """Makes nodes, and ends everything on them."""
    made = []

    def make(**variables):
        made.append(Node(**variables))
        return made[-1]

    yield make
    for node in made:
        node.close()
