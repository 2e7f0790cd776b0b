import pytest

from harness import run_small


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The same job without faults, by (world, model, until); each is run once."""
    known = {}

    def get(world, model="plain", until=12, extra=()):
        key = (world, model, until, tuple(extra))
        if key not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{world}-{model}")
            known[key] = run_small(folder, world=world, model=model, until=until, extra=extra)
            assert known[key].exit_code == 0, known[key].explain()
        return known[key]

    return get
