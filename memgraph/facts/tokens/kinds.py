"""Operators that the search for token regions treats alike, by their qualified names."""

from __future__ import annotations

from memgraph.facts.operators import aten_names

# transformers' operator for devices on which aten::_grouped_mm does not run.
GROUPED_FALLBACK = "transformers::grouped_mm_fallback"
# Products of rows that are sorted by expert.
GROUPED_PRODUCTS = aten_names("_grouped_mm") | {GROUPED_FALLBACK}
PRODUCTS = aten_names("mm addmm bmm") | GROUPED_PRODUCTS
SORTS = aten_names("sort argsort")
# 0, 1, 2, ...
COUNTERS = aten_names("arange") | {"prims::iota"}
# Constants and counters: a shard makes its own.
MAKERS = aten_names("full empty zeros ones scalar_tensor") | COUNTERS
# Operators that draw: what they draw at a place depends on where that place is in the whole value.
DRAWS = aten_names("random") | {"prims::inductor_random"}
# Where an operator is told the size of its output: the place of that argument.
SIZED = {
    f"aten::{name}": place
    for names, place in (
        ("full empty zeros ones", 0),
        ("view _unsafe_view reshape expand slice_backward select_backward", 1),
        ("new_zeros new_empty new_full new_ones", 1),
    )
    for name in names.split()
}
# Where an operator is told how many queries and how many keys it has: the places of these arguments.
TOLD_QUERIES = {"aten::_scaled_dot_product_cudnn_attention_backward": 11}
TOLD_KEYS = {"aten::_scaled_dot_product_cudnn_attention_backward": 12}
# Operators whose output has a row for each row of their inputs, although torch does not tag them pointwise.
SAME_SHAPE = aten_names("clone _to_copy where rsqrt copy lift_fresh_copy zeros_like ones_like full_like empty_like")
SAME_SHAPE |= frozenset(("prims::convert_element_type", "prims::fma", "prims::device_put"))

_ATTENTION = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable"
)
# Operators whose purpose is to mix tokens: a refusal says so, and not that a rule is missing.
MIXERS = (
    aten_names(_ATTENTION)
    | aten_names(" ".join(f"{name}_backward" for name in _ATTENTION.split()))
    | aten_names("_scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps")
    | aten_names("_flash_attention_forward _flash_attention_backward _cudnn_attention_forward")
    | aten_names("_cudnn_attention_backward _efficient_attention_forward _efficient_attention_backward")
    | aten_names("convolution convolution_backward convolution_overrideable convolution_backward_overrideable")
    | aten_names("_convolution mkldnn_convolution cudnn_convolution miopen_convolution miopen_depthwise_convolution")
    | aten_names("_fft_r2c _fft_c2r _fft_c2c")
    | frozenset(("prims::fft_r2c", "prims::fft_c2r", "prims::fft_c2c"))
    | frozenset(("higher_order::flex_attention", "higher_order::flex_attention_backward"))
)
