"""Manifests: from the bytes of a file or URL to checked Pods, with every problem named at once.

Covers: reading documents, kind and version, type errors, defaults, validation, unknown fields, and what
a static pod gets and may not have (references to other API objects).
Does not cover: watching files and URLs (sources/static.py).

Unknown fields do not stop a pod: the agent logs them as warnings and runs it, like a cluster does.
`pykubelet check` reports them as problems, because there a typing error is what one looks for.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, Literal, cast

import msgspec
from msgspec import Struct

from pykubelet.api.codec import ManifestError, convert, unknown_fields
from pykubelet.api.defaults import default_pod
from pykubelet.api.documents import load_yaml_documents
from pykubelet.api.references import pod_references
from pykubelet.api.static_uid import static_pod_uid
from pykubelet.api.types import Pod, PodList, Toleration
from pykubelet.api.validation.findings import FieldError, key_path, one_line, show
from pykubelet.api.validation.pod import validate_pod

MAX_TYPE_ERRORS = 20
SHOWN_PROBLEMS = 10
TYPE_WORDS = {
    "expected": "must be",
    "|": "or",
    "object": "a map",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}
CONFIG_HASH = "kubernetes.io/config.hash"

StaticSource = Literal["file", "http"]
ManifestWarnings = list[FieldError]
"""Filled by the loaders with what does not stop a pod: its unknown fields."""


class InvalidManifest(ManifestError):
    """A manifest that cannot be used; `problems` holds all that is wrong with it."""

    def __init__(self, problems: Sequence[FieldError], *, origin: str) -> None:
        self.problems = list(problems)
        self.origin = origin
        first = self.problems[0]
        super().__init__(first.message, path=first.path)

    def __str__(self) -> str:
        shown = "; ".join(str(problem) for problem in self.problems[:SHOWN_PROBLEMS])
        more = len(self.problems) - SHOWN_PROBLEMS
        return f"{one_line(self.origin)}: {shown}" + (f"; and {more} more" if more > 0 else "")


def load_pods(data: bytes | BinaryIO, *, origin: str, warnings: ManifestWarnings | None = None) -> list[Pod]:
    """The Pods of a manifest that holds a Pod or a PodList, defaulted and valid."""
    read = _read_pods(_only_document(data, origin), origin, warnings)
    problems = [problem for prefix, pod in read for problem in _judge(pod, prefix)]
    if problems:
        raise InvalidManifest(problems, origin=origin)
    return [pod for _, pod in read]


class Allowed(Struct, frozen=True, kw_only=True):
    """What the node lets a static pod have beyond what every node does."""

    api_references: bool = False
    """To refer to objects of the API server."""
    users_in_host_network: bool = False
    """A user namespace and the host's network."""


NOTHING_SPECIAL = Allowed()


def load_static_pods(
    data: bytes | BinaryIO,
    *,
    node_name: str,
    source: StaticSource,
    origin: str,
    warnings: ManifestWarnings | None = None,
    allowed: Allowed = NOTHING_SPECIAL,
) -> list[Pod]:
    """What a static source delivers for one file or URL: a file holds one Pod, a URL may give a PodList."""
    document = _only_document(data, origin)
    if source == "file" and isinstance(document, dict) and document.get("kind") == "PodList":
        raise InvalidManifest([_at("kind", "must be Pod in a file, not PodList")], origin=origin)
    read = _read_pods(document, origin, warnings)
    problems: list[FieldError] = []
    pods: list[Pod] = []
    for index, (prefix, pod) in enumerate(read):
        if not pod.metadata.name:
            # Without this the suffix alone would pass for a name.
            problems.append(_at(f"{prefix}metadata.name", "required"))
            continue
        given = document if document["kind"] == "Pod" else document["items"][index]
        static = static_pod_defaults(pod, node_name=node_name, source=source, origin=origin, document=given)
        problems += _judge(static, prefix, allowed)
        refused = api_references(static, only=NEVER_IN_STATIC_PODS if allowed.api_references else None)
        problems += (_at(prefix + found.path, found.message) for found in refused)
        pods.append(static)
    if problems:
        raise InvalidManifest(problems, origin=origin)
    return pods


def read_documents(data: bytes | BinaryIO) -> list[Any]:
    """The plain documents of a manifest, without the empty ones; InvalidManifest names the line."""
    try:
        return load_yaml_documents(data)
    except ManifestError as error:
        where = "" if error.line is None else f"line {error.line}: "
        raise InvalidManifest([_at(error.path, where + error.message)], origin="") from None


def document_problems(document: Any) -> list[FieldError]:
    """All that is wrong with one document, unknown fields included; for people, not for the agent."""
    warnings: ManifestWarnings = []
    try:
        read = _read_pods(document, "", warnings)
    except InvalidManifest as error:
        return error.problems
    return [*warnings, *(problem for prefix, pod in read for problem in _judge(pod, prefix))]


def _at(path: str, message: str) -> FieldError:
    return FieldError(path=path, message=message)


def _only_document(data: bytes | BinaryIO, origin: str) -> Any:
    try:
        documents = read_documents(data)
    except InvalidManifest as error:
        raise InvalidManifest(error.problems, origin=origin) from None
    if not documents:
        raise InvalidManifest([_at("", "line 1: nothing here, expected a Pod")], origin=origin)
    if len(documents) > 1:
        message = f"document 2: expected one Pod in a file, found {len(documents)} documents"
        raise InvalidManifest([_at("", message)], origin=origin)
    return documents[0]


def _read_pods(document: Any, origin: str, warnings: ManifestWarnings | None) -> list[tuple[str, Pod]]:
    """Defaulted pods, each with the prefix of its field paths."""
    problems = [_at(path, "has half of a surrogate pair, which is no text") for path in _broken_texts(document)]
    problems = problems or list(_wrong_kind(document))
    if problems:
        raise InvalidManifest(problems, origin=origin)
    kind: type[Pod] | type[PodList] = PodList if document["kind"] == "PodList" else Pod
    try:
        found: Pod | PodList = convert(cast(Any, kind), document)
    except ManifestError as error:
        raise InvalidManifest(_type_errors(kind, document, error), origin=origin) from None
    if warnings is not None:
        warnings += (_at(path, "unknown field") for path in unknown_fields(kind, document))
    read = [("", found)] if isinstance(found, Pod) else [(f"items[{i}].", p) for i, p in enumerate(found.items)]
    for _, pod in read:
        default_pod(pod)
    return read


def _wrong_kind(document: Any) -> Iterator[FieldError]:
    if not isinstance(document, dict):
        found = "a list" if isinstance(document, list) else show(document)
        yield _at("", f"line 1: expected a Pod, found {found}")
        return
    if document.get("apiVersion") != "v1":
        yield _at("apiVersion", _must_be("v1", document.get("apiVersion")))
    if document.get("kind") not in ("Pod", "PodList"):
        yield _at("kind", _must_be("Pod", document.get("kind")))


def _must_be(expected: str, found: Any) -> str:
    if found is None:
        return f"required, must be {expected}"
    shown = "a map" if isinstance(found, dict) else "a list" if isinstance(found, list) else show(found)
    return f"must be {expected}, not {shown}"


def _judge(pod: Pod, prefix: str, allowed: Allowed = NOTHING_SPECIAL) -> list[FieldError]:
    problems = validate_pod(pod, users_in_host_network=allowed.users_in_host_network)
    if pod.spec.ephemeral_containers:
        problems.append(_at("spec.ephemeralContainers", "must not be set in a manifest"))
    return [_at(prefix + p.path, p.message) for p in problems] if prefix else problems


def _type_errors(kind: type[Pod] | type[PodList], document: Any, error: ManifestError) -> list[FieldError]:
    """The conversion stops at the first wrong type; blanking that place finds the next one."""
    problems = [_at(error.path or "line 1", _plain_words(error.message))]
    # Through JSON: the fastest copy there is, and one in which aliases no longer share their values.
    rest = msgspec.json.decode(msgspec.json.encode(document))
    while len(problems) < MAX_TYPE_ERRORS and error.path and _blank(rest, "." + error.path):
        try:
            convert(cast(Any, kind), rest)
            break
        except ManifestError as following:
            if following.path == error.path:
                break
            error = following
            problems.append(_at(error.path, _plain_words(error.message)))
    return problems


def _plain_words(message: str) -> str:
    """Type names as a writer of YAML knows them: a map where the decoder says object."""
    expected, comma, got = message.partition(", got ")
    words = [TYPE_WORDS.get(word, word) for word in expected.split(" ")]
    return " ".join(words) + (f", not {TYPE_WORDS.get(got, got)}" if comma else "")


def _blank(tree: Any, path: str) -> bool:
    """Set the value at a path (as `convert` writes them) to null. Keys may hold dots and brackets."""
    if isinstance(tree, list):
        number, bracket, rest = path.removeprefix("[").partition("]")
        if not (bracket and number.isdigit() and int(number) < len(tree)):
            return False
        steps: list[tuple[Any, str]] = [(int(number), rest)]
    elif isinstance(tree, dict):
        steps = []
        for key in tree:
            for written in (f".{key}", f"[{key}]"):
                if path.startswith(written):
                    steps.append((key, path[len(written) :]))
    else:
        return False
    for key, rest in steps:
        if not rest:
            tree[key] = None
            return True
        if _blank(tree[key], rest):
            return True
    return False


def _broken_texts(document: Any) -> Iterator[str]:
    """Paths of texts that cannot be written out again, which JSON's escapes can smuggle in."""
    try:
        msgspec.json.encode(document)
    except UnicodeEncodeError:
        yield from _half_surrogates(document, "")


def _half_surrogates(tree: Any, path: str) -> Iterator[str]:
    if isinstance(tree, str):
        if any("\ud800" <= ch <= "\udfff" for ch in tree):
            yield path
    elif isinstance(tree, list):
        for i, item in enumerate(tree):
            yield from _half_surrogates(item, f"{path}[{i}]")
    elif isinstance(tree, dict):
        for key, item in tree.items():
            here = f"{path}.{key}" if path else key
            yield from (key_path(path, key) for _ in _half_surrogates(key, here))
            yield from _half_surrogates(item, here)


def static_pod_defaults(pod: Pod, *, node_name: str, source: StaticSource, origin: str, document: Any = None) -> Pod:
    """The pod as this node runs it: own name, UID from the content, bound, tolerating, Pending.

    A new Pod; the given one is left alone. The UID changes whenever the manifest does, which is how
    the agent sees an edited file as a new pod. `origin` is the path of the file or the URL, `document` the manifest as
    it was read.
    """
    where = f"host:{node_name}file:{origin}" if source == "file" else f"url:{origin}"
    uid = pod.metadata.uid or static_pod_uid(pod, document, where)
    metadata = msgspec.structs.replace(
        pod.metadata,
        uid=uid,
        name=f"{pod.metadata.name}-{node_name.lower()}",
        namespace=pod.metadata.namespace or "default",
        annotations={**pod.metadata.annotations, CONFIG_HASH: uid},
    )
    tolerations = list(pod.spec.tolerations)
    if source == "file" and not any(_tolerates_no_execute(have) for have in tolerations):
        # So that a taint of the node does not evict its own static pods.
        tolerations.append(Toleration(operator="Exists", effect="NoExecute"))
    return msgspec.structs.replace(
        pod,
        metadata=metadata,
        spec=msgspec.structs.replace(pod.spec, node_name=node_name, tolerations=tolerations),
        status=msgspec.structs.replace(pod.status, phase="Pending"),
    )


def _tolerates_no_execute(have: Toleration) -> bool:
    return have == Toleration(operator="Exists", effect="NoExecute")


NEVER_IN_STATIC_PODS = frozenset(("clustertrustbundles", "resourceclaims"))
"""Refused with gate PreventStaticPodAPIReferences off, too."""


def api_references(pod: Pod, *, only: Collection[str] | None = None) -> list[FieldError]:
    """Every such reference, as `static pods may not reference <resource>` at its field; `only` to these resources."""
    refused = {
        reference.at: reference.resource
        for reference in pod_references(pod)
        if only is None or reference.resource in only
    }
    return [
        FieldError(path=path, message=f"static pods may not reference {resource}")
        for path, resource in refused.items()
        if path.rpartition(".")[0] not in refused  # what is inside of a refused field goes with it
    ]
