"""The Kubernetes types every other package imports.

Covers: all generated Structs, their aliases (QuantityValue, IntOrString, Time, MicroTime), the table of
kinds and the strategic-merge-patch keys, under one stable module name.
Does not cover: reading and writing them (codec.py), quantities (quantity.py), times (times.py).
"""

from pykubelet.api.generated import *  # noqa: F403
