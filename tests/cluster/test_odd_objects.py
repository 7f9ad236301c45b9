"""Objects that a real API server stores and that are hard to read: they cost nobody anything, and their pods run."""

from __future__ import annotations

import json

import pytest

from tests.cluster.joined import Joined, Manifest, pod_manifest
from tests.deep import deep

pytestmark = pytest.mark.cluster

DEPTH = 3000


def with_odd_fields(pod: Manifest, node: str, **entry: object) -> str:
    """The pod as text, bound to the node, with an entry of managedFields that its author made up."""
    managed = {"manager": "odd", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", **entry}
    body = {
        **pod,
        "metadata": {**pod["metadata"], "managedFields": [managed]},
        "spec": {**pod["spec"], "nodeName": node},
    }
    return json.dumps(body).replace('"DEEP"', deep(DEPTH))


def create(node: Joined, text: str) -> None:
    node.cluster.kubectl("create", "--raw", "/api/v1/namespaces/default/pods", "-f", "-", stdin=text)


def test_odd_times_and_depths_cost_nobody_anything(node: Joined) -> None:
    create(
        node,
        with_odd_fields(pod_manifest("year-zero"), node.agent.node, time="0000-01-01T00:00:00Z", fieldsV1={"f:a": {}}),
    )
    create(node, with_odd_fields(pod_manifest("deep"), node.agent.node, fieldsV1="DEEP"))
    node.apply(pod_manifest("good"))
    shown = json.loads(node.cluster.kubectl("get", "--raw", "/api/v1/namespaces/default/pods/year-zero"))
    assert "0000-01-01T00:00:00Z" in [each.get("time") for each in shown["metadata"]["managedFields"]]
    for name in ("good", "year-zero", "deep"):
        node.wait_running(name)
    # A restarted agent reads them by a list instead of a watch.
    node.agent.kill9()
    node.agent.start()
    node.apply(pod_manifest("later"))
    node.wait_running("later")
