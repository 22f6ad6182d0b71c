"""Real models with random weights, for tests and benchmarks.

`tiny` has Hugging Face families as small as they come, `sized` the same families at any size with a batch, and `blocks`
single layers and chains of them. Of all three, the tests use `tiny` most: its names can be imported from here.
"""

from tests.support.models.tiny import EXPERTS, FAMILIES, MORE, Loss, build, build_without_dropout

__all__ = ["EXPERTS", "FAMILIES", "MORE", "Loss", "build", "build_without_dropout"]
