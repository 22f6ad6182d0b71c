"""Wrappers that Inductor writes and does not load: a load compiles all kernels of a graph."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Wrapper:
    """Stands for the module of a wrapper, which is loaded by `load`, or when it is first run.

    Attributes:
        __file__: the path of the wrapper's source; Inductor logs it.
    """

    def __init__(self, path: str, load: Callable[[], Any]) -> None:
        self.__file__ = path
        self._load: Callable[[], Any] | None = load
        self._module: Any = None
        self._lock = threading.Lock()

    def load(self) -> Any:
        """The module of the wrapper. Its kernels are compiled before this returns; once, however often it is called."""
        with self._lock:
            if self._load is not None:
                self._module = self._load()
                self._load = None  # it holds the constants of the graph
        return self._module

    def call(self, args: list[Any]) -> Any:
        """Run the wrapper, which takes its arguments out of the list."""
        return self.load().call(args)


@contextlib.contextmanager
def loading_later() -> Iterator[list[Wrapper]]:
    """While this lasts, this thread's Inductor loads no wrapper that it writes. Yields those written, in their order.

    Wrappers that come from its caches are loaded all the same. A wrapper that is loaded later has no `runner`, which
    CUDA graphs would ask for.
    """
    before = getattr(_hooks.thread, "written", None)
    with _hooks:
        written: list[Wrapper] = []
        _hooks.thread.written = written
        try:
            yield written
        finally:
            _hooks.thread.written = before


class _Hooks:
    """Two functions of Inductor's, replaced while any thread is within; in a thread that is not, they do as ever.

    That which writes a wrapper calls that which loads it; others call the latter, too, for templates of kernels.
    """

    def __init__(self) -> None:
        self.thread = threading.local()
        """`written`: the list of `loading_later`. `writing`: whether a wrapper is being written."""
        self._lock = threading.Lock()
        self._within = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._replace()
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                self._restore()

    def _replace(self) -> None:
        from torch._inductor.codecache import PyCodeCache
        from torch._inductor.graph import GraphLowering

        stock, loader = GraphLowering._compile_to_module_lines, PyCodeCache.__dict__["load_by_key_path"]
        load, thread = PyCodeCache.load_by_key_path, self.thread

        def write(lowering: Any, code: Any) -> Any:
            thread.writing = getattr(thread, "written", None) is not None
            try:
                return stock(lowering, code)
            finally:
                thread.writing = False

        def load_or_note(key: str, path: str, *args: Any, **kwargs: Any) -> Any:
            if not getattr(thread, "writing", False):
                return load(key, path, *args, **kwargs)
            thread.written.append(Wrapper(path, lambda: load(key, path, *args, **kwargs)))
            return thread.written[-1]

        def restore() -> None:
            GraphLowering._compile_to_module_lines, PyCodeCache.load_by_key_path = stock, loader

        GraphLowering._compile_to_module_lines = write
        PyCodeCache.load_by_key_path = staticmethod(load_or_note)
        self._restore = restore


_hooks = _Hooks()
