"""A training step made from a Hugging Face config.json: the model without weights, and a batch without contents."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from memgraph.base.errors import MemgraphError, OptionsError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
# transformers' lists of models by what they are trained for.
TASKS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION")
LORA_NEEDS = "--lora needs peft, which is not installed: pip install peft"


@dataclasses.dataclass(frozen=True)
class Made:
    """A step to be asked about."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    sequence: bool
    """Whether the second dimension of the arguments is a sequence."""
    notes: tuple[str, ...] = ()


def dtype_named(name: str) -> torch.dtype:
    """The dtype of weights that a user names.  Raises OptionsError for one that is not among them."""
    key = name.lower().removeprefix("torch.")
    key = SHORT.get(key, key)
    if key in DTYPES:
        return DTYPES[key]
    raise OptionsError(f"--dtype {name!r} is none of weights{_meant(key, DTYPES)}; allowed: {', '.join(DTYPES)}")


def made_from_config(
    file: Path, *, dtype: torch.dtype, batch: int, sequence: int | None, lora: int | None, attention: str | None
) -> Made:
    """The training step of the model that a config.json describes. Nothing is downloaded, and no weight is allocated.

    sequence: tokens of a text, by default as many as the model has positions.  lora: the rank of adapters on all linear
    layers; None to train all parameters.  attention: as `attn_implementation` of transformers; "unmasked" for causal
    attention without a mask in memory.
    Raises OptionsError where the file describes no model that transformers knows, MemgraphError where transformers or
    peft is missing.
    """
    config = read_config(file)
    task, kind = _task(config, file)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    notes = []
    if sequence is None:
        sequence = positions or 1024
    elif positions and sequence > positions:
        notes.append(f"the config has {positions:,} positions: a longer sequence may need another position encoding")
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with torch.device("meta"):
        model = _model(config, task, dtype, attention)
        if lora is not None:
            model = _with_lora(model, lora)
        arguments = _arguments(task, config, batch, sequence, dtype)
    model.train()
    names = tuple(arguments)

    def loss(*values: Any) -> Any:
        return model(**dict(zip(names, values, strict=True))).loss

    return Made(kind, loss, tuple(arguments.values()), task != "IMAGE_CLASSIFICATION", tuple(notes))


def read_config(file: Path) -> Any:
    """The configuration in a file, or in the config.json of a folder.  Raises OptionsError where it is none."""
    transformers = _transformers()
    file = file / "config.json" if file.is_dir() else file
    try:
        fields = json.loads(file.read_text())
    except OSError as problem:
        raise OptionsError(f"{file} cannot be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise OptionsError(f"{file} is not JSON: {problem}") from problem
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    if not isinstance(kind, str) or kind not in known:
        what = "names no model_type"
        if kind is not None:
            what = f"has the model_type {kind!r}, which this transformers does not know{_meant(str(kind), known)}"
        raise OptionsError(f"{file} {what}; allowed: a config.json of Hugging Face, or SCRIPT.py:FUNCTION")
    fields = {key: value for key, value in fields.items() if key not in ("model_type", "auto_map")}
    try:
        return transformers.AutoConfig.for_model(kind, **fields)
    except Exception as problem:  # transformers' own checks: of many classes
        raise OptionsError(f"{file} is refused by transformers: {_first_line(problem)}") from problem


def _transformers() -> Any:
    try:
        import transformers
        import transformers.models.auto.configuration_auto
        import transformers.models.auto.modeling_auto
    except ModuleNotFoundError as missing:
        raise MemgraphError(f"a config.json needs {missing.name}: pip install transformers") from missing
    transformers.logging.set_verbosity_error()
    return transformers


def _task(config: Any, file: Path) -> tuple[str, str]:
    """What the model is trained for, and its class: that which the config names, else the usual one of its kind."""
    auto = _transformers().models.auto.modeling_auto
    lists = {task: getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS}
    found = {task: classes for task, names in lists.items() if (classes := _names(names.get(config.model_type)))}
    for wanted in config.architectures or ():
        for task, classes in found.items():
            if wanted in classes:
                return task, wanted
    usual = ["CAUSAL_LM", "MASKED_LM"] if getattr(config, "is_decoder", False) else ["MASKED_LM", "CAUSAL_LM"]
    if getattr(config, "is_encoder_decoder", False):
        usual = ["SEQ_TO_SEQ_CAUSAL_LM"]
    for task in (*usual, *TASKS):  # an encoder has a head of each kind
        if task in found:
            return task, found[task][0]
    raise OptionsError(
        f"{file}: {config.model_type} has no head with a loss that `fit` knows; SCRIPT.py:FUNCTION takes any model"
    )


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _model(config: Any, task: str, dtype: torch.dtype, attention: str | None) -> Any:
    transformers = _transformers()
    auto = {"SEQ_TO_SEQ_CAUSAL_LM": "Seq2SeqLM", "CAUSAL_LM": "CausalLM", "MASKED_LM": "MaskedLM"}
    words = auto.get(task) or task.title().replace("_", "")
    kind = getattr(transformers, f"AutoModelFor{words}")
    given = {} if attention is None else {"attn_implementation": _attention(attention)}
    try:
        return kind.from_config(config, dtype=dtype, **given)
    except (ValueError, ImportError, TypeError, KeyError, AttributeError) as problem:
        raise OptionsError(f"transformers cannot make the model: {_first_line(problem)}") from problem


def _attention(name: str) -> str:
    if name != "unmasked":
        return name
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("sdpa_unmasked", sdpa_attention_forward)
    return "sdpa_unmasked"


def _with_lora(model: Any, rank: int) -> Any:
    try:
        import peft
    except ModuleNotFoundError as missing:
        raise MemgraphError(LORA_NEEDS) from missing
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear"))


def _arguments(task: str, config: Any, batch: int, sequence: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A batch, by the names of the model's arguments."""
    labels = torch.empty(batch, dtype=torch.long)
    if task == "IMAGE_CLASSIFICATION":
        size = config.image_size if hasattr(config, "image_size") else 224
        height, width = size if isinstance(size, list | tuple) else (size, size)
        pixels = torch.empty(batch, getattr(config, "num_channels", 3), height, width, dtype=dtype)
        return {"pixel_values": pixels, "labels": labels}
    ids = torch.empty(batch, sequence, dtype=torch.long)
    return {"input_ids": ids, "labels": labels if task == "SEQUENCE_CLASSIFICATION" else torch.empty_like(ids)}


def _meant(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0]
