import io
import sys
import threading
import time

import pytest

from memgraph.backend import progress
from memgraph.backend.progress import Progress


def names(shown):
    return [name for name, _ in shown.stages]


def test_records_nested_stages_with_their_seconds(capfd, monkeypatch):
    clock = iter((0.0, 1.0, 3.0, 10.0))  # outer begins, inner begins, inner ends, outer ends
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    shown = Progress()
    with shown.stage("all", graph="loss_fn [0]"), shown.stage("planning", graph="loss_fn [0]"):
        assert shown.stages == ()
    assert shown.stages == (("planning", 2.0), ("all", 10.0))
    assert capfd.readouterr() == ("", "")  # no terminal


def test_an_exception_passes_and_its_stage_is_recorded():
    shown = Progress(True)
    with pytest.raises(KeyError, match="boom"), shown.stage("planning"):
        raise KeyError("boom")
    assert names(shown) == ["planning"]


def test_true_writes_plain_lines_off_terminal(capfd):
    with Progress(True).stage("planning", graph="loss_fn [0]"):
        pass
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "memgraph: planning loss_fn [0]\nmemgraph: planning loss_fn [0]: 0.0 s\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_terminal(monkeypatch):
    """Make stderr a terminal; not a fixture, since pytest sets stderr anew between set-up and test."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    for name in ("RANK", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return sys.stderr


def test_auto_draws_at_a_terminal_and_gives_it_back(monkeypatch):
    terminal = open_terminal(monkeypatch)
    with Progress().stage("planning", graph="[bold]f[/bold] [0]"):
        assert sys.stderr is not terminal  # warnings go above the line
    assert sys.stderr is terminal
    text = terminal.getvalue()
    assert "memgraph: planning [bold]f[/bold] [0]  0 s" in text  # a name is no markup
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize(("enabled", "rank"), [(False, "0"), ("auto", "1")])
def test_silent_at_a_terminal(monkeypatch, enabled, rank):
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv("RANK", rank)
    with Progress(enabled).stage("planning"):
        pass
    assert terminal.getvalue() == ""


def test_closes_the_line_when_an_exception_passes_nested_stages(monkeypatch):
    terminal = open_terminal(monkeypatch)
    shown = Progress()
    with pytest.raises(KeyboardInterrupt), shown.stage("outer"), shown.stage("inner"):
        raise KeyboardInterrupt
    assert names(shown) == ["inner", "outer"]
    assert progress._line._live is None and progress._line._running == [] and sys.stderr is terminal


@pytest.mark.parametrize("stream", [None, "closed", "broken"])
def test_a_stream_that_does_not_work_breaks_nothing(monkeypatch, stream):
    broken = open_terminal(monkeypatch)
    if stream == "closed":
        broken.close()
    elif stream == "broken":
        broken.write = lambda text: (_ for _ in ()).throw(BrokenPipeError())
    monkeypatch.setattr(sys, "stderr", None if stream is None else broken)
    for enabled in (True, "auto"):
        shown = Progress(enabled)
        with shown.stage("planning"):
            pass
        assert names(shown) == ["planning"]
        assert progress._line._live is None and progress._line._running == []


def test_threads_share_one_line(monkeypatch):
    terminal = open_terminal(monkeypatch)
    shown = Progress()
    barrier = threading.Barrier(4)

    def work(i):
        for turn in range(5):
            with shown.stage(f"{i}.{turn}"):
                barrier.wait(10)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(shown)) == sorted(f"{i}.{turn}" for i in range(4) for turn in range(5))
    assert progress._line._live is None and progress._line._running == [] and sys.stderr is terminal


def test_seconds_tick_and_stdout_stays_clean(monkeypatch, capsys):
    terminal = open_terminal(monkeypatch)
    with Progress().stage("Inductor forward", graph="f"):
        time.sleep(1.3)  # nothing but rich's own thread draws meanwhile
        print("data")
        print("a warning", file=sys.stderr)
    text = terminal.getvalue()
    assert "Inductor forward f  0 s" in text and "Inductor forward f  1 s" in text and "a warning\n" in text
    assert "data" not in text and capsys.readouterr().out == "data\n"
