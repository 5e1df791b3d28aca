"""verl's functions as verl wrote them: a second copy of its module, whatever was installed into the first in this
process."""

import importlib.util

_spec = importlib.util.find_spec("verl.utils.torch_functional")
assert _spec is not None and _spec.loader is not None
verls_own = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(verls_own)
