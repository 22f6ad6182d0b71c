"""The step that a user names at a terminal: found in a script or a module; its errors are shown as its own."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memgraph.base import compat
from memgraph.base.errors import MemgraphError, OptionsError
from memgraph.base.fingerprint import source_folders

TARGET_HELP = """TARGET is SCRIPT.py:FUNCTION or package.module:FUNCTION. FUNCTION is called once, without
arguments, and returns (callable, args), where args is a tuple and callable(*args) is the step up to the loss.
The step is not run: make the model and args under `torch.device("meta")`, and they need no memory."""


def load_step(target: str, **given: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step that TARGET's function returns. Raises OptionsError where TARGET is not what TARGET_HELP asks for.

    given: arguments for those parameters of the function that bear these names.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise OptionsError(f"{target!r} names no function.\n{TARGET_HELP}")
    function = getattr(_load_module(place), name, None)
    if not callable(function):
        raise OptionsError(f"{place} has no function {name!r}.\n{TARGET_HELP}")
    given = {name: value for name, value in given.items() if name in _parameters(function)}
    needed = ", ".join(name for name, needed in _parameters(function).items() if needed and name not in given)
    if needed:
        raise OptionsError(f"{target} is called without arguments, and needs {needed}.\n{TARGET_HELP}")
    made = function(**given)
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple)):
        raise OptionsError(f"{target} returned a {type(made).__name__} that is not (callable, args).\n{TARGET_HELP}")
    return made


def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """The names of a function's parameters, and whether it cannot be called without them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin: calling it will say
        return {}
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.default is p.empty for p in parameters if p.kind not in kinds}


def _load_module(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, "")  # as `python -m` does
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as missing:
            if missing.name != place and not place.startswith(f"{missing.name}."):
                raise  # the module is there, and something that it imports is not
            raise OptionsError(f"there is no module {place!r}.\n{TARGET_HELP}") from missing
    file = Path(place)
    if not file.is_file():
        raise OptionsError(f"there is no script {place!r}.\n{TARGET_HELP}")
    sys.path.insert(0, str(file.parent.resolve()))  # as `python SCRIPT` does
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


class ScriptError(MemgraphError):
    """A user's script failed."""


@contextlib.contextmanager
def own_words(target: str) -> Iterator[None]:
    """Turn an error of the user's script into a ScriptError that shows the line in the script, without a traceback."""
    torchs = compat.logger_of_fake_tensors()
    level = torchs.level
    if "TORCH_LOGS" not in os.environ:
        torchs.setLevel(logging.CRITICAL)
    try:
        yield
    except MemgraphError:
        raise
    except Exception as error:
        root: BaseException = error
        while _is_dynamos(root) and (inner := root.__cause__ or root.__context__):
            root = inner
        frames = traceback.extract_tb(root.__traceback__)
        if frames and _is_ours(frames[-1].filename):
            raise  # a bug, and its traceback says where
        message = str(root).partition("\n\n")[0].strip()
        text = f"{target} failed: {type(root).__name__}" + (f": {message}" if message else "")
        # Dynamo traces lines without running them, so they are in no traceback.
        traced = getattr(error, "real_stack", None) or ()
        seen = [*traceback.extract_tb(error.__traceback__), *frames, *traced]
        raise ScriptError("\n".join([text, *_own_frame(seen, target)])) from error
    finally:
        torchs.setLevel(level)


def _is_dynamos(error: BaseException) -> bool:
    """Whether Dynamo raised it, about another error.

    2.15 has some of plain types, which come with the traceback of their cause.
    """
    frames, cause = traceback.extract_tb(error.__traceback__), error.__cause__
    retold = cause is not None and frames[-1:] == traceback.extract_tb(cause.__traceback__)[-1:]
    return compat.is_dynamos_own(error) or retold


def _is_ours(file: str) -> bool:
    return any(folder in Path(file).parents for folder in source_folders())


def _own_frame(frames: Sequence[traceback.FrameSummary], target: str) -> Iterator[str]:
    """The innermost line of the script that led to the error."""
    place = target.rpartition(":")[0]
    module = sys.modules.get(Path(place).stem if place.endswith(".py") else place)
    file = getattr(module, "__file__", None) or place
    own = [frame for frame in frames if os.path.realpath(frame.filename) == os.path.realpath(file)]
    for frame in own[-1:]:
        yield f"  {frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
