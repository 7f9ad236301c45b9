"""The UID of a static pod: a hash of what its manifest says, the same that the Go kubelet gives it.

The two must agree, or each would take the other's static pods for strangers and restart them when one agent takes the
place of the other on a running node. The Go kubelet hashes a printed form of the Pod as it has it in memory, after
defaults: each field with its type, in the order of its declaration. pod_layout.json has these types and fields (made
by tools/gen_static_uids.py); here they are filled from the Pod of the API. Does not cover: the status and the times in
a manifest, which count as not given, and requests of a pod as a whole that are derived from those of its containers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from pykubelet.api.quantity import MAX_TEXT
from pykubelet.api.types import Pod

NOTHING = "<nil>"
NO_TIME = "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}"
NAMES = {
    "core.GlusterfsVolumeSource": {"EndpointsName": "endpoints"},
    "core.RBDVolumeSource": {"CephMonitors": "monitors", "RBDImage": "image", "RBDPool": "pool", "RadosUser": "user"},
    "core.AzureDiskVolumeSource": {"DataDiskURI": "diskURI"},
    "core.ISCSIVolumeSource": {"DiscoveryCHAPAuth": "chapAuthDiscovery", "SessionCHAPAuth": "chapAuthSession"},
}
"""Fields that the API spells otherwise than in memory, by more than the case of letters."""
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")
"""Fields of a pod's spec that are in its security context in memory."""
OLD_ANNOTATIONS = frozenset(
    f"pod.{stage}.kubernetes.io/init-{what}"
    for stage in ("alpha", "beta")
    for what in ("containers", "container-statuses")
)

FNV_PRIME, FNV_OFFSET = 0x0000000001000000000000000000013B, 0x6C62272E07BB014262B821756295C58D
MASK = (1 << 128) - 1

Tree = Mapping[str, Any]


def static_pod_uid(pod: Pod, document: Any, where: str) -> str:
    """`document` is the manifest as it was read, `where` says of which file on which host, or of which URL."""
    value = FNV_OFFSET
    for byte in (_shown(pod, document) + where).encode(errors="surrogateescape"):
        value = (value ^ byte) * FNV_PRIME & MASK
    return f"{value:032x}"


def _shown(pod: Pod, document: Any) -> str:
    tree: dict[str, Any] = msgspec.to_builtins(pod)
    spec: dict[str, Any] = tree.setdefault("spec", {})
    host = {name: spec[name] for name in HOST_FIELDS if name in spec}
    spec["securityContext"] = {**spec.get("securityContext", {}), **host}
    spec["serviceAccountName"] = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    metadata: dict[str, Any] = tree.setdefault("metadata", {})
    annotations: dict[str, str] = metadata.get("annotations", {})
    metadata["annotations"] = {name: text for name, text in annotations.items() if name not in OLD_ANNOTATIONS}
    tree = {"metadata": metadata, "spec": spec}
    return "(*core.Pod)" + _struct("core.Pod", tree, document)


@cache
def _layout() -> dict[str, list[tuple[str, str, bool]]]:
    """Type -> its fields: name, type, and whether what is in it belongs to the type around it."""
    data = json.loads((resources.files("pykubelet.api") / "pod_layout.json").read_bytes())
    return {
        kind: [(name.lstrip("+"), of, name.startswith("+")) for name, of in (field.split(" ", 1) for field in fields)]
        for kind, fields in data.items()
    }


def _struct(kind: str, value: Tree, given: Any) -> str:
    """`given` is the same part of the manifest: it alone tells an empty list from none."""
    given = given if isinstance(given, Mapping) else {}
    keys = {key.lower(): key for key in (*given, *value)}
    shown = []
    for name, of, embedded in _layout()[kind]:
        if embedded and of != "v1.ObjectMeta":
            shown.append(f"{name}:({of}){_struct(of, {} if of == 'v1.TypeMeta' else value, given)}")
            continue
        wire = "metadata" if embedded else NAMES.get(kind, {}).get(name, name)
        key = keys.get(wire.lower(), wire)
        part = given.get(key)
        if of.lstrip("*") == "core.ResourceRequirements" and isinstance(part, Mapping):
            part = _with_requests(part, value.get(key) or {}, of_pod=of.startswith("*"))
        shown.append(f"{name}:({of}){_value(of, value.get(key), part)}")
    return "{" + " ".join(shown) + "}"


def _with_requests(given: Tree, value: Tree, *, of_pod: bool) -> Tree:
    """Limits are requests as well, where no others are given; those of a pod only if its containers have none."""
    limits = given.get("limits")
    if limits is None:
        return given
    if of_pod:
        limits = {name: text for name, text in limits.items() if value.get("requests", {}).get(name) == text}
    return {**given, "requests": {**limits, **(given.get("requests") or {})}}


def _value(kind: str, value: Any, given: Any) -> str:
    if kind.startswith("*"):
        return NOTHING if value is None or kind == "*v1.Time" else _value(kind[1:], value, given)
    if kind.startswith("[]"):
        return _list(kind[2:], value, given)
    if kind == "core.ResourceList":
        return _map("resource.Quantity", value, given)
    if kind.startswith("map["):
        return _map(kind.partition("]")[2], value, given)
    if kind in _layout():
        return _struct(kind, value or {}, given)
    if kind == "resource.Quantity":
        return _quantity(value if given is None else given)
    if kind == "intstr.IntOrString":
        number, text = (0, value) if isinstance(value, str) else (value or 0, "")
        which = int(isinstance(value, str))
        return f"{{Type:(intstr.Type){which} IntVal:(int32){number} StrVal:(string){text}}}"
    if kind == "v1.Time":
        return NO_TIME
    return _plain(kind, value)


def _plain(kind: str, value: Any) -> str:
    if value is None:
        value = {"bool": False, "int": 0, "int32": 0, "int64": 0}.get(kind, "")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _list(kind: str, value: Sequence[Any] | None, given: Any) -> str:
    given = given if isinstance(given, list) else None
    if not value and given is None:
        return NOTHING
    items = value or ()
    beside = given if given is not None and len(given) == len(items) else [None] * len(items)
    return "[" + " ".join(_value(kind, *pair) for pair in zip(items, beside, strict=True)) + "]"


def _map(kind: str, value: Tree | None, given: Any) -> str:
    given = given if isinstance(given, Mapping) else None
    if not value and given is None:
        return NOTHING
    beside = given or {}
    shown = []
    for key, each in sorted((value or {}).items()):
        if kind == "resource.Quantity":
            text = _quantity(beside.get(key, each), rounded=True, computed=key not in beside)
        else:
            text = _value(kind, each, beside.get(key))
        shown.append(f"{key}:{text}")
    return f"map[{' '.join(shown)}]"


QUANTITY = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,4}|)", re.ASCII)
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
MILLI, NANO = -3, -9
MOST_DIGITS, MOST_BINARY_DIGITS = 18, 15
MOST = (1 << 63) - 1


def _quantity(value: Any, *, rounded: bool = False, computed: bool = False) -> str:
    """A quantity as Go keeps it: a number with a power of ten where that is enough, else a number of any size.

    `rounded`: up to a thousandth, as in lists of resources. `computed`: no text of the manifest is kept with it.
    """
    if value is None:
        return _quantity_shown(0, 0, "", "")
    text = str(value).strip()
    found = QUANTITY.fullmatch(text)
    if text == "0" or found is None or len(text) > MAX_TEXT:  # one that cannot be read is refused later
        return _quantity_shown(0, 0, "0", "DecimalSI")
    sign, whole, fraction, suffix = (part or "" for part in found.groups())
    whole = whole or "0"
    if suffix in DECIMAL:
        scale, style = DECIMAL[suffix], "DecimalSI"
    elif suffix in BINARY:
        scale, style = 0, "BinarySI"
    else:
        scale, style = int(suffix[1:]), "DecimalExponent"
    negative = -1 if sign == "-" else 1
    factor = 1 << BINARY.get(suffix, 0)
    digits = whole + fraction
    number = int(digits)
    if style == "BinarySI":
        small = not fraction and MOST_BINARY_DIGITS - len(whole) - int(BINARY[suffix] * 3 / 10) - 1 >= 0
        kept = bool(number & 7)
    else:
        small = len(digits) <= MOST_DIGITS and scale - len(fraction) >= NANO
        kept = (scale - len(fraction)) % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    if not small or number * factor > MOST:
        return _big_quantity(negative * number * factor, scale - len(fraction), style, rounded)
    scale -= len(fraction)
    amount = number * factor
    if rounded and scale < MILLI:
        amount, scale, kept = _rounded_up(amount, scale, MILLI), MILLI, False
    return _quantity_shown(negative * amount, scale, text if kept and not computed else "", style)


def _quantity_shown(amount: int, scale: int, text: str, style: str, big: str = NOTHING) -> str:
    number = f"i:(resource.int64Amount){{value:(int64){amount} scale:(resource.Scale){scale}}}"
    more = f"d:(resource.infDecAmount){{Dec:(*inf.Dec){big}}} s:(string){text} Format:(resource.Format){style}"
    return f"{{{number} {more}}}"


def _big_quantity(number: int, scale: int, style: str, rounded: bool) -> str:
    """`number` times ten to the power of `scale`."""
    size = abs(number)
    if size:
        size, scale = _rounded_up(size, scale, NANO), NANO
        if style == "BinarySI" and size > MOST * 10**-NANO:
            size, scale = MOST, 0
        elif style == "BinarySI" and size < 10**-NANO:
            style = "DecimalSI"
    if rounded:
        size, scale = _rounded_up(size, scale, MILLI), MILLI
    words = []
    rest = size
    while rest:
        words.append(str(rest & (1 << 64) - 1))
        rest >>= 64
    abs_ = f"[{' '.join(words)}]" if words else NOTHING
    sign = "true" if number < 0 and size else "false"
    unscaled = f"unscaled:(big.Int){{neg:(bool){sign} abs:(big.nat){abs_}}}"
    return _quantity_shown(0, 0, "", style, f"{{{unscaled} scale:(inf.Scale){-scale}}}")


def _rounded_up(number: int, scale: int, to: int) -> int:
    """A number times ten to the power of `scale`, in units of ten to the power of `to`."""
    power: int = 10 ** abs(scale - to)
    return number * power if scale >= to else -(-number // power)
