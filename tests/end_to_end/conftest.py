"""What the end-to-end tests of offload share."""

import pytest

from memgraph import runtime


@pytest.fixture
def scratch(tmp_path):
    """A scratch folder; afterwards no value is held and no file is left."""
    yield str(tmp_path)
    runtime.release()
    statistics = runtime.statistics()
    assert statistics.host_live == statistics.nvme_live == 0, "a value is still held"
    assert not list(tmp_path.iterdir()), "a file was left behind"
