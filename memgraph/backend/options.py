"""The options of the backend: one dict in, one frozen value out; what is not understood is refused."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    ValidationError,
    model_validator,
)

from memgraph.backend import option_values as values
from memgraph.base import compat
from memgraph.base.errors import OptionsError, PlanError
from memgraph.facts.actions import Offload, Rule
from memgraph.planner.step_plan import StepPlan


class RecomputeOptions(BaseModel):
    """How values may be recomputed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    copies: StrictBool = True
    """Recompute a value once for each region that reads it, where one shared copy would stay live longer."""


class ScratchOptions(BaseModel):
    """Where offloaded values lie on a disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, Field(min_length=1, strict=True)]
    """A folder; the scratch file in it has no name."""

    limit: Annotated[int | None, PlainValidator(values.limit)] = None
    """The most bytes that the scratch file may take; None for what the disk has."""

    margin: Annotated[int | float | None, PlainValidator(values.margin)] = None
    """What stays free on the disk for others: bytes, or a share of the file system (float); None for 5 % of it, but at
    most 1 GiB. Checked whenever the scratch file grows, and only then."""

    gpudirect: Annotated[bool | Literal["auto"], PlainValidator(values.gpudirect)] = "auto"
    """Copy between a GPU and the file without host memory in between (GPUDirect Storage): `"auto"` where it was
    measured to be faster; True always, with an OffloadError where that cannot be; False never."""


class OffloadOptions(BaseModel):
    """Where values may be copied to in the forward, to be copied back in the backward."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[int | bool, PlainValidator(values.host)] = False
    """Host memory: at most so many bytes, True for what the machine has free, False (or None) for none."""

    nvme: Annotated[ScratchOptions | None, BeforeValidator(values.nvme)] = None
    """A scratch file: a folder, or a dict of its path, a limit in bytes, a margin and `gpudirect`; None for none."""

    min_bytes: Annotated[int, PlainValidator(values.reserve)] = 1 << 20
    """Smaller values stay on the device unless a rule says otherwise."""

    window: Annotated[int, PlainValidator(values.reserve)] = 0
    """With several graphs in a step (one for each layer): while a graph's backward runs, so many bytes of the one that
    runs next may come back already. They are held back from the budget."""

    verify: StrictBool = False
    """Keep a checksum of every offloaded value and compare it when the value comes back."""


class TileOptions(BaseModel):
    """Which regions may run one shard of the tokens at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mlp: Annotated[int | str | bool, PlainValidator(values.shards)] = "auto"
    """Regions that make each token's row longer and shorter again (an MLP, a block of experts): a number of shards,
    `"auto"` for what the budget needs, False for none."""

    loss: Annotated[int | str | bool, PlainValidator(values.shards)] = "auto"
    """Regions that make each token's row longer to reduce it (a head and its loss): as above."""

    attention: Annotated[int | str | bool, PlainValidator(values.shards)] = "auto"
    """Masks of attention, whose bytes grow with the square of the sequence. A mask that is the causal one is dropped,
    and the call says `is_causal=True` instead; with any other, attention runs in shards of its queries: as above.
    False leaves attention as it is."""

    accumulate: Literal["float32"] = "float32"
    """The dtype in which gradients of weights are summed over shards; float64 stays float64."""

    logits: Literal["keep", "drop"] = "keep"
    """Outputs from which nothing but a loss is computed, without weights in between, that the function returns beside
    that loss: kept whole, or replaced by a tensor of their shape that is filled with NaN."""


class Options(BaseModel):
    """The options of one compilation: frozen, hashable, independent of the caller's dict.

    Made by `parse_options`, which turns every refusal into an OptionsError.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: Annotated[int | float | Literal["auto"] | None, PlainValidator(values.budget)] = "auto"
    """The bound on the allocated peak: bytes (int), a fraction (float) of what the unplanned step allocates
    above the baseline, `"auto"` for what the device has left, None for no bound."""

    reserve: Annotated[int, PlainValidator(values.reserve)] = 0
    """Bytes held back for what memgraph cannot see yet, such as optimizer state made after the first step."""

    largest_size: Annotated[int | None, PlainValidator(values.largest_size)] = None
    """How large each symbolic size of a graph may get in this run: a plan is made for that at once, where the budget is
    one in bytes. Larger ones are planned for when they come."""

    recompute: Annotated[RecomputeOptions | None, BeforeValidator(values.recompute)] = RecomputeOptions()
    """The lever that drops values and computes them again; None (given as False) where it may not be used."""

    offload: Annotated[OffloadOptions | None, BeforeValidator(values.offload)] = None
    """The lever that copies values to host memory or NVMe and back; None (given as False) where it may not be used."""

    tile: Annotated[TileOptions | None, BeforeValidator(values.tile)] = None
    """The lever that runs a region one shard of its tokens at a time; None (given as False) where only rules use it."""

    plan: Annotated[
        StepPlan | None, PlainValidator(values.plan), PlainSerializer(lambda plan: plan and plan.digest)
    ] = None
    """A plan, or a file with one, that is used as it is: nothing is planned. None: a plan is made. Cache keys hold the
    digest of the plan, not the path of the file."""

    rules: Annotated[tuple[Rule, ...], PlainValidator(values.rules), PlainSerializer(values.spelt)] = ()
    """Pins by module path: what the planner may not change. The first rule that matches a module decides."""

    repeatable: Annotated[tuple[str, ...], PlainValidator(values.repeatable)] = ()
    """Custom operators that give the same result for the same arguments and have no other effect, by name or pattern
    (`"mylib::rmsnorm"`, `"mylib::*"`, `"triton::my_kernel"`): they may be recomputed. One that draws, counts, logs or
    communicates must not be listed; a custom operator that is not listed is never run again."""

    verify: StrictBool = True
    """Check the graph after every pass."""

    outline: Annotated[bool | Literal["auto"], PlainValidator(values.outline)] = "auto"
    """Compile equal layers once and call what was compiled for each of them: True for all that are equal, `"auto"`
    where that leaves much less to compile and the budget has room for it, False for none."""

    retain_graph: StrictBool = False
    """Plan for `backward(retain_graph=True)`: saved values outlive the backward and none is overwritten in it.
    Without it torch refuses such a backward, since saved values are given to Inductor to reuse."""

    inductor_json: Annotated[str, PlainValidator(values.inductor)] = Field("{}", alias="inductor")
    """Inductor's configuration as JSON, which is frozen and hashable; read it as `options.inductor`."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = None
    """torch.compile's mode, which it does not take next to options."""

    progress: Literal["auto"] | StrictBool = "auto"
    """Show what memgraph is doing while it compiles; `"auto"`: where there is a terminal."""

    cache: StrictBool = True
    """Keep plans on disk, and use those kept before; False switches Inductor's caches off for the graph as well."""

    strict: StrictBool = False
    """Raise where a graph cannot be planned, instead of compiling it by plain Inductor with a PlanWarning."""

    @model_validator(mode="after")
    def _tiers_of_rules(self) -> Options:
        tiers = {"host": bool(self.offload and self.offload.host), "nvme": bool(self.offload and self.offload.nvme)}
        given = {"host": '{"host": True}', "nvme": '{"nvme": "/scratch"}'}
        for rule in self.rules:
            if isinstance(rule.action, Offload) and not tiers[rule.action.tier]:
                raise ValueError(
                    f"option 'rules': the action {str(rule.action)!r} of {rule.pattern!r} has nowhere to go; "
                    f"allowed with option 'offload' such as {given[rule.action.tier]}"
                )
        return self

    @model_validator(mode="after")
    def _tiers_of_the_plan(self) -> Options:
        given = {"host": '{"host": True}', "nvme": '{"nvme": "/scratch"}'}
        for tier in sorted(self.plan.tiers if self.plan else ()):
            if not (self.offload and getattr(self.offload, tier)):
                raise ValueError(
                    f"option 'plan': the plan sends values to the {tier} tier, and there is none; allowed with option "
                    f"'offload' such as {given[tier]}"
                )
        return self

    @model_validator(mode="after")
    def _checksums_or_gpudirect(self) -> Options:
        if self.offload and self.offload.verify and self.offload.nvme and self.offload.nvme.gpudirect is True:
            raise ValueError(
                "option 'offload.nvme.gpudirect' cannot be True with 'offload.verify': checksums need the bytes in the "
                'memory of the host; allowed: "auto", False'
            )
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        """The levers that may not be used at all."""
        return tuple(lever for lever in ("recompute", "offload", "tile") if getattr(self, lever) is None)

    @property
    def held_back(self) -> int:
        """Bytes of the budget that no plan of one graph may use."""
        return self.reserve + (self.offload.window if self.offload else 0)

    @property
    def inductor(self) -> dict[str, Any]:
        """What is handed to Inductor's configuration: a fresh dict at each call."""
        return json.loads(self.inductor_json)

    def key(self) -> str:
        """Return, for cache keys, a canonical JSON text of all that can change a compiled graph.

        `largest_size` is left out: the sizes that a plan is made for are a part of the key by themselves.
        """
        told = self.model_dump(exclude={"progress", "strict", "largest_size"})
        return json.dumps(told, sort_keys=True, separators=(",", ":"))


def parse_options(options: Mapping[str, Any] | None) -> Options:
    """Validate and copy `options`; None stands for the defaults.

    Raises OptionsError that names each refused key, its value, what is allowed, and the nearest known key.
    """
    if options is not None and not isinstance(options, Mapping):
        raise OptionsError(f"options={reprlib.repr(options)} is refused; allowed: a dict, or None")
    given = dict(options or {})
    donated = compat.saved_values_are_donated()
    if given.get("plan") is None and not donated:
        given.setdefault("retain_graph", True)  # torch's own setting asks for the same
    try:
        if given.get("plan") is not None:
            given = _under_a_plan(given)
        found = Options.model_validate(given)
        if not donated and not found.retain_graph:  # torch would let a second backward read what the first overwrote
            whose = "False" if found.plan is None else "that of its plan, False,"
            raise OptionsError(
                f"option 'retain_graph' cannot be {whose} with torch._functorch.config.donated_buffer = False; "
                "allowed: True, or torch's setting as it is by itself"
            )
        return found
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors(include_url=False)]
    except PlanError as error:
        problems = [f"option 'plan': {error}"]
    raise OptionsError("\n".join(dict.fromkeys(problems)))  # once each: a union refuses once for each member


# The options that a plan depends on: they decide which graphs there are, and what may be done to them.
OF_A_PLAN = ("recompute", "tile", "rules", "repeatable", "outline", "retain_graph")


def of_a_plan(options: Options) -> dict[str, Any]:
    """The options that belong to a plan, as `parse_options` takes them; without the scratch folder of this machine."""
    told: dict[str, Any] = {}
    for name in OF_A_PLAN:
        value = getattr(options, name)
        told[name] = value.model_dump() if isinstance(value, BaseModel) else value
    told["recompute"], told["tile"] = told["recompute"] or False, told["tile"] or False
    told["rules"], told["repeatable"] = dict(values.spelt(options.rules)), list(options.repeatable)
    if options.offload is not None:
        told["offload"] = options.offload.model_dump(exclude={"nvme"})
    return told


def _under_a_plan(given: dict[str, Any]) -> dict[str, Any]:
    """The options with those that the plan was made under, and no budget unless one is given.

    Raises PlanError for a file that has no plan, OptionsError for an option that differs from the plan's, and
    pydantic's ValidationError.
    """
    try:
        plan = values.plan(given["plan"])
    except PlanError:
        raise
    except ValueError as problem:
        raise OptionsError(f"option 'plan' cannot be {reprlib.repr(given['plan'])}: {problem}") from None
    assert plan is not None
    made_under: dict[str, Any] = json.loads(plan.options)
    if unknown := made_under.keys() - {*OF_A_PLAN, "offload"}:
        raise PlanError(f"it is damaged: it was made with the options {values.listed(sorted(unknown))}")
    tiers = {name: value for name, value in (made_under | given).items() if name == "offload"}  # rules speak of them
    theirs = Options.model_validate(made_under | tiers)
    ours = Options.model_validate(given | tiers | {"plan": None})
    for name in given.keys() & OF_A_PLAN:
        if getattr(ours, name) != getattr(theirs, name):
            spelt = reprlib.repr(made_under.get(name))
            raise OptionsError(
                f"option {name!r} cannot be {reprlib.repr(given[name])} with option 'plan': the plan was made with "
                f"{spelt}, and is used as it is; allowed: leave it out"
            )
    return {"budget": None} | made_under | given | {"plan": plan}


def _explain(problem: Mapping[str, Any]) -> str:
    path = problem["loc"]
    if not path:  # options that do not go together
        return str(problem["ctx"]["error"])
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        known = _known_keys(_NESTED.get(path[:-1], Options))
        name = ".".join(map(str, path))
        value = "" if problem["type"] == "invalid_key" else f" (value {reprlib.repr(problem['input'])})"
        return f"option {name!r}{value} is not known{values.nearest(path[-1], known)}; allowed: {values.listed(known)}"
    # A union adds the name of the member to the path; the option is all that a user knows.
    depth = next((n for n in range(len(path), 1, -1) if path[-1] in _keys_at(path[: n - 1])), 1)
    name = ".".join(map(str, path[:depth]))
    if problem["type"] == "value_error":
        why = str(problem["ctx"]["error"])
    else:
        why = f"allowed: {_ALLOWED.get(name, 'True, False')}"
    return f"option {name!r} cannot be {reprlib.repr(problem['input'])}: {why}"


_ALLOWED = {
    "mode": 'None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"',
    "progress": '"auto", True, False',
    "offload.nvme.path": "a folder (str)",
    "tile.accumulate": '"float32"',
    "tile.logits": '"keep", "drop"',
}


_NESTED: dict[tuple[Any, ...], type[BaseModel]] = {
    ("recompute",): RecomputeOptions,
    ("tile",): TileOptions,
    ("offload",): OffloadOptions,
    ("offload", "nvme"): ScratchOptions,
}


def _keys_at(path: tuple[Any, ...]) -> list[str]:
    return _known_keys(_NESTED[path]) if path in _NESTED else []


def _known_keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
