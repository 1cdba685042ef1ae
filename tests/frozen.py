"""Exempts all objects from garbage collection; the fork server of `tests/forked.py` imports this last.

The gateway collects garbage when it has started. In a forked process, this would visit and copy all that it inherited.
"""

import gc

gc.collect()
gc.freeze()
