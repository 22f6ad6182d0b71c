"""What the simulator refuses and finds without a device: cards by name, and builds of torch that it does not know."""

import pytest

from memgraph import simulator
from memgraph.base.errors import OptionsError
from memgraph.machine.hardware import built_in
from memgraph.simulator import libraries
from memgraph.simulator.cards import CARDS


@pytest.mark.parametrize(
    "name, found",
    [
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("h100 80 GB", "NVIDIA H100 80GB HBM3"),
        ("A100 40GB", "NVIDIA A100-SXM4-40GB"),
        ("4090", "NVIDIA GeForce RTX 4090 24GB"),
        ("NVIDIA H200", "NVIDIA H200 141GB HBM3e"),
    ],
)
def test_a_card_is_found_by_words_of_its_name(name, found):
    assert simulator.card(name).name == found


@pytest.mark.parametrize("name", ["", "H100 40GB", "TPU"])
def test_a_card_that_is_not_known_is_refused(name):
    with pytest.raises(OptionsError, match="can be simulated; allowed"):
        simulator.card(name)


def test_its_memory_may_be_another():
    assert simulator.card("H100", memory="10GiB").memory == 10 * 1024**3


@pytest.mark.parametrize("memory, why", [("foo", "no memory of 'foo'"), ("256MiB", "the driver takes 512.0 MiB")])
def test_a_memory_that_cannot_be_is_refused(memory, why):
    with pytest.raises(OptionsError, match=why):
        simulator.card("H100", memory=memory)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_each_card_has_figures_to_plan_with(card):
    known = built_in(f"{card.name} (simulated)")
    assert known.name != "generic CUDA device"
    assert known.capacity <= card.memory or "80GB" in card.name  # figures are those of the smaller A100


def test_a_build_without_cuda_is_refused(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("cuda: Optional[str] = None\n")
    monkeypatch.setattr(libraries, "_site", lambda: tmp_path)
    libraries.installed.cache_clear()
    with pytest.raises(simulator.SimulatorError, match="this one is built for CUDA None"):
        libraries.installed()
    libraries.installed.cache_clear()
