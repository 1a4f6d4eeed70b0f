"""The layer as Flax modules: `MegaMoe` (nnx) here, its Linen twin in `jax_megamoe.linen`.

What they share: `layer.py` checks and calls, `making.py` makes experts, `preparing.py`
rearranges them in place, `placing.py` splits them over the mesh; `forms.py` has the names under
which a module holds them.
"""

from jax_megamoe.modules.forms import check_restore
from jax_megamoe.modules.nnx import MegaMoe, QuantizedWeight

__all__ = ["MegaMoe", "QuantizedWeight", "check_restore"]
