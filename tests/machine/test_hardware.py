import dataclasses
import json
import math
import stat

import pytest
import torch

from memgraph.base.errors import OffloadError, OptionsError
from memgraph.base.folder import cache_folder
from memgraph.machine import calibration, disk, disk_calibration, hardware
from memgraph.machine.calibration import _link, calibrate_device
from memgraph.machine.disk_calibration import calibrate_disk
from memgraph.machine.hardware import Hardware
from memgraph.runtime.host import HostPool
from tests.support.offloading import GdsFiles


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_json_round_trip():
    h100 = hardware.built_in("NVIDIA H100 80GB HBM3")
    assert h100.name == "H100"
    assert Hardware.from_json(h100.to_json()) == h100
    assert hash(h100) == hash(Hardware.from_json(h100.to_json()))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"flops": 3}'])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match="not the figures of a device"):
        Hardware.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bandwidth": 0},
        {"kernel_overhead": -1},
        {"capacity": None},
        {"transcendental_rate": float("inf")},
        {"flops": {"bfloat16": 1.0}},
        {"attention": {"bfloat16": 0.0}},
        {"masked_attention": {"bfloat16": 0.0}},
        {"colour": "green"},
    ],
)
def test_figures_that_cannot_be_are_refused(change):
    fields = json.loads(hardware.built_in("cpu").to_json()) | change
    with pytest.raises(ValueError, match="not the figures of a device"):
        Hardware.from_json(json.dumps(fields))


def test_rate_by_dtype():
    a100 = hardware.built_in("NVIDIA A100-SXM4-40GB")
    assert a100.rate(torch.bfloat16) == a100.rate("bfloat16") > a100.rate(torch.float32)
    assert a100.rate(torch.int8) == a100.rate(torch.float32)


def test_attention_goes_by_its_own_rate_where_that_was_measured():
    a100 = hardware.built_in("A100")
    assert a100.attention_rate(torch.bfloat16) == a100.rate(torch.bfloat16)
    measured = dataclasses.replace(a100, attention=(("bfloat16", 3e14),))
    assert measured.attention_rate("bfloat16") == 3e14 and measured.attention_rate("float32") == a100.rate("float32")
    assert Hardware.from_json(measured.to_json()) == measured


def test_kinds_of_attention_go_by_their_own_rates():
    measured = dataclasses.replace(
        hardware.built_in("A100"), attention=(("bfloat16", 3e14),), masked_attention=(("bfloat16", 1e14),)
    )
    rates = [measured.attention_rate("bfloat16", kind) for kind in ("causal", "masked", "whole")]
    assert rates == [3e14, 1e14, 3e14]  # what was not measured goes by causal attention
    assert measured.attention_rate("float32", "masked") == measured.rate("float32")
    assert Hardware.from_json(measured.to_json()) == measured


@pytest.mark.parametrize("name", ["attention", "masked_attention", "whole_attention"])
def test_figures_that_were_kept_before_attention_was_measured(name):
    figures = hardware.built_in("H100")
    kept = json.loads(figures.to_json())
    del kept[name]
    assert Hardware.from_json(json.dumps(kept)) == dataclasses.replace(figures, **{name: ()})
    assert Hardware.from_json(json.dumps(kept | {name: {}})) == dataclasses.replace(figures, **{name: ()})


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_attention_of_a_card_that_was_measured(name):
    """0.25 and 0.78 ms for 2 x 16 heads x 4,096 x 128 without a mask, forward and backward, and 0.80 and 2.34 with one
    (docs/decisions/0018)."""
    card, work = hardware.built_in(name), 14 * 2 * 16 * 4096**2 * 128
    causal, masked, whole = (card.attention_rate("bfloat16", kind) for kind in ("causal", "masked", "whole"))
    assert work / 2 / causal == pytest.approx(1.03e-3, rel=0.01) and work / masked == pytest.approx(3.14e-3, rel=0.01)
    assert whole == causal == card.attention_rate("float16") and card.attention_rate("float32") == card.rate("float32")


def test_built_in_names():
    assert hardware.built_in("NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert hardware.built_in("NVIDIA H200").name == "H200"
    assert hardware.built_in("NVIDIA L4").name == "generic CUDA device"
    assert hardware.built_in("NVIDIA H1000").name == hardware.built_in("NVIDIA XH100").name == "generic CUDA device"
    assert hardware.built_in("cpu").device == "cpu"


@pytest.mark.parametrize(
    "asked, found",
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("4090", "RTX 4090"),
        ("RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("cuda", "generic CUDA device"),
        ("generic CUDA device", "generic CUDA device"),
        ("cpu", "generic CPU"),
    ],
)
def test_hardware_is_found_by_its_name_or_a_word_of_it(asked, found):
    assert hardware.named(asked).name == found


@pytest.mark.parametrize("asked, meant", [("H1000", "H100"), ("RTX4090", "RTX 4090"), ("L4", ""), ("", ""), ("H", "")])
def test_other_hardware_is_refused_with_the_nearest_name(asked, meant):
    with pytest.raises(OptionsError) as refused:
        hardware.named(asked)
    assert f"(did you mean {meant!r}?)" in str(refused.value) if meant else "did you mean" not in str(refused.value)
    assert all(name in str(refused.value) for name in ("H200", "H100", "A100", "RTX 4090"))


def test_only_calibrated_figures_are_measured():
    assert not hardware.load("cpu").measured and not hardware.built_in("H100").measured
    kept = dataclasses.replace(hardware.load("cpu"), measured=True)
    assert Hardware.from_json(kept.to_json()).measured
    fields = json.loads(kept.to_json())
    del fields["measured"]  # kept by an earlier version
    assert Hardware.from_json(json.dumps(fields)).measured


def test_load_without_a_measurement_is_built_in_with_this_machines_memory():
    cpu = hardware.load("cpu")
    assert cpu.name == hardware.device_name("cpu")
    assert cpu.flops == hardware.built_in("cpu").flops
    assert 1 << 28 < cpu.capacity < 1 << 50


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_generic():
    assert hardware.load("cuda").name == "generic CUDA device"


def test_saved_figures_are_found_again_and_replaced(folder):
    figures = dataclasses.replace(hardware.load("cpu"), memory_bandwidth=123.0)
    hardware.save(figures)
    assert hardware.load("cpu") == figures
    figures = dataclasses.replace(figures, memory_bandwidth=456.0)
    file = hardware.save(figures)
    assert hardware.load("cpu") == figures
    assert list(folder.iterdir()) == [file]  # nothing half-written stays
    assert torch.__version__.split("+")[0] in file.name


def test_damaged_file_is_passed_over():
    file = hardware.save(hardware.load("cpu"))
    file.write_text(file.read_text()[:40])
    assert hardware.load("cpu").flops == hardware.built_in("cpu").flops
    file.write_bytes(b"\xff\xfe")
    assert hardware.load("cpu").flops == hardware.built_in("cpu").flops


def test_unwritable_cache_is_no_reason_to_fail(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path / "file" / "cache"))
    assert hardware.load("cpu").flops == hardware.built_in("cpu").flops


def test_other_kinds_are_refused():
    for ask in (hardware.load, calibrate_device):
        with pytest.raises(ValueError, match="meta"):
            ask("meta")


def test_cache_folder(folder, monkeypatch, tmp_path):
    assert cache_folder() == folder and stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.delenv("MEMGRAPH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "memgraph"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "memgraph"


@pytest.mark.slow
def test_calibrate_gives_figures_that_can_be():
    measured = calibrate_device("cpu")
    assert Hardware.from_json(measured.to_json()) == measured
    assert 1e8 < measured.rate(torch.float32) < 1e14 and measured.measured
    assert dict(measured.attention).keys() == set(hardware.DTYPES)
    for kind in ("causal", "masked", "whole"):
        assert 1e8 < measured.attention_rate(torch.float32, kind) < 1e14
    assert measured.masked_attention != measured.attention != measured.whole_attention
    assert 1e8 < measured.memory_bandwidth < 1e13
    assert 1e-8 < measured.kernel_overhead < 1e-2
    assert all(0 <= time < 1e-6 for time in (measured.truth_time, measured.random_time, measured.put_time))


def test_figures_kept_before_links_were_measured_are_still_read():
    fields = json.loads(hardware.built_in("cpu").to_json())
    del fields["link_out"], fields["link_in"]
    assert Hardware.from_json(json.dumps(fields)).link_out > 0
    with pytest.raises(ValueError, match="not the figures of a device"):
        Hardware.from_json(json.dumps(fields | {"link_out": 0}))


def test_figures_kept_before_entries_were_measured_are_still_read():
    fields = json.loads(hardware.built_in("cpu").to_json())
    for name in ("truth_time", "random_time", "put_time"):
        assert fields.pop(name) > 0
        assert getattr(Hardware.from_json(json.dumps(fields)), name) == 0 == getattr(hardware.built_in("H100"), name)
        with pytest.raises(ValueError, match="not the figures of a device"):
            Hardware.from_json(json.dumps(fields | {name: -1e-9}))


def test_links_are_measured_by_the_runtimes_own_copies(monkeypatch):
    source, target = torch.rand(1 << 18), torch.zeros(1 << 18)
    pools = []
    monkeypatch.setattr(calibration, "HostPool", lambda device: pools.append(HostPool(device)) or pools[0])
    rates = _link(source, target, torch.device("cpu"))
    assert not pools[0].reserved(), "the reservation ends with the measurement"
    assert all(1e7 < rate < 1e13 for rate in rates)
    assert torch.equal(source, target)


def test_disk_figures_round_trip_and_are_kept_by_disk(tmp_path, folder):
    assert disk.load(tmp_path) == disk.BUILT_IN and not disk.BUILT_IN.measured
    figures = disk.Disk(write=2e9, read=3e9, direct=False)
    file = disk.save(tmp_path, figures)
    (tmp_path / "below").mkdir()
    assert disk.load(tmp_path) == disk.load(tmp_path / "below") == figures
    file.write_text("{")
    assert disk.load(tmp_path) == disk.BUILT_IN
    assert disk.load(tmp_path / "missing") == disk.BUILT_IN
    built_in = (disk.BUILT_IN_DRAG, disk.BUILT_IN_EACH)
    assert figures.drag is None and figures.taken == built_in  # kept before it was measured, or for a GPU
    kept = dataclasses.replace(figures, drag=0.0)
    assert disk.Disk.from_json(kept.to_json()).taken == (0, 0)  # measured with what each value takes in it
    assert disk.Disk.from_json(dataclasses.replace(kept, each=1e-3).to_json()).taken == (0, 1e-3)
    bad = [f'{{"write": 1, "read": 1, {figure}}}' for figure in ('"gpudirect_read": -1', '"drag": 2')]
    bad.append('{"write": 1, "read": 1, "drag": 0, "each": -1}')
    for text in ("[]", "{}", '{"write": 0, "read": 1}', *bad):
        with pytest.raises(ValueError, match="not the figures of a disk"):
            disk.Disk.from_json(text)


@pytest.mark.slow
def test_disk_is_measured_through_the_runtime_and_leaves_nothing(tmp_path):
    measured = calibrate_disk(tmp_path)
    assert measured.measured and 1e6 < measured.write < 1e12 and 1e6 < measured.read < 1e12
    assert not list(tmp_path.iterdir())
    with pytest.raises(OffloadError, match="No such file"):
        calibrate_disk(tmp_path / "missing")


def test_gpudirect_has_to_win_clearly(tmp_path):
    """By the time of a write and a read; the tenth is for what a bandwidth does not show."""
    staged = disk.Disk(write=2e9, read=4e9)  # 0.75 ns a byte
    for write, read, wins in ((4e9, 4e9, True), (2e9, 5e9, False), (1e9, 9e9, False), (2.3e9, 4.6e9, True)):
        both = dataclasses.replace(staged, gpudirect_write=write, gpudirect_read=read)
        assert (both.against_gpudirect == "") is wins
        assert wins or "not faster" in both.against_gpudirect
        assert both.rates(True) == (write, read) and both.rates(False) == (2e9, 4e9)
        disk.save(tmp_path, both)
        assert disk.load(tmp_path) == both
    assert "calibrate" in staged.against_gpudirect and staged.rates(True) == (2e9, 4e9)
    assert dataclasses.replace(staged, refusal="no driver").against_gpudirect == "no driver"


def test_figures_kept_before_gpudirect_was_measured_are_still_read(tmp_path):
    disk.save(tmp_path, disk.Disk(write=2e9, read=3e9)).write_text('{"write": 2e9, "read": 3e9, "direct": true}')
    assert disk.load(tmp_path).write == 2e9 and "not measured" in disk.load(tmp_path).against_gpudirect


@pytest.fixture
def small_values(monkeypatch):
    monkeypatch.setattr(disk_calibration, "_EACH", 1 << 20)
    monkeypatch.setattr(disk_calibration, "_SECONDS", 0.01)
    monkeypatch.setattr(disk_calibration, "_ROUNDS", 5)


def test_both_ways_are_measured(tmp_path, small_values):
    measured = calibrate_disk(tmp_path, gds=(files := GdsFiles()))
    assert measured.knows_gpudirect and measured.write > 0 and files.of("save") and files.of("load")
    assert disk.Disk.from_json(measured.to_json()) == measured
    assert files.opened == files.closed == 1


@pytest.mark.parametrize("failing", ["open", "save", "late"])
def test_a_machine_without_gpudirect_is_measured_the_other_way(tmp_path, small_values, failing):
    class Late(GdsFiles):
        def asked(self, kind, storage, offset):
            if len(self.calls) > 20:
                raise RuntimeError("no driver")
            super().asked(kind, storage, offset)

    measured = calibrate_disk(tmp_path, gds=Late() if failing == "late" else GdsFiles(**{failing: "no driver"}))
    assert measured.write > 0 and not measured.knows_gpudirect
    assert measured.against_gpudirect == measured.refusal != "" and "no driver" in measured.refusal


def test_what_copies_take_from_a_cpu_is_measured(tmp_path, small_values, monkeypatch):
    monkeypatch.setattr(disk_calibration, "_SPREAD", math.inf)  # whatever else the machine does
    measured = calibrate_disk(tmp_path)
    assert measured.drag is not None and 0 <= measured.drag <= 1
    assert measured.each is not None and 0 <= measured.each < 1
    monkeypatch.setattr(disk_calibration, "_SPREAD", -math.inf)
    assert calibrate_disk(tmp_path).taken == (disk.BUILT_IN_DRAG, disk.BUILT_IN_EACH)
    assert not list(tmp_path.iterdir())
    assert calibrate_disk(tmp_path, gds=GdsFiles()).drag is None  # as from a GPU, which has engines for copies


def test_the_cpu_says_nothing_of_gpudirect(tmp_path, small_values):
    assert "not measured" in calibrate_disk(tmp_path).refusal


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_disk_is_measured_both_ways_or_says_why(tmp_path):
    measured = calibrate_disk(tmp_path, "cuda")
    assert measured.write > 0 and bool(measured.knows_gpudirect) is (not measured.refusal)


@pytest.mark.parametrize(
    "name, gib",
    [
        ("H100", 79),
        ("H100 80GB", 79),
        ("NVIDIA H100 80GB HBM3", 79),
        ("A100", 39),
        ("A100 80GB", 79),
        ("A100-40GB", 39),
    ],
)
def test_a_name_that_tells_the_memory(name, gib):
    assert hardware.named(name).capacity == gib * 1024**3
    kind = "H100" if "H100" in name else "A100"
    assert hardware.named(name).flops == hardware.built_in(kind).flops
