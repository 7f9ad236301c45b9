"""What tests of images are made of: pods, secrets and logins."""

from __future__ import annotations

import base64
import json
from typing import Any

from pykubelet.api.types import LocalObjectReference, ObjectMeta, Pod, Secret
from pykubelet.images.keyring import Entry, Login, SecretOrigin
from tests.builders import a_pod


def a_pulling_pod(name: str = "web", *, secrets: tuple[str, ...] = (), account: str | None = None) -> Pod:
    named = [LocalObjectReference(name=secret) for secret in secrets]
    return a_pod(name, image_pull_secrets=named, service_account_name=account)


def a_secret(name: str, auths: dict[str, Any], *, form: str = "dockerconfigjson") -> Secret:
    document = {"auths": auths} if form == "dockerconfigjson" else auths
    return raw_secret(name, json.dumps(document).encode(), form=form)


def raw_secret(name: str, text: bytes, *, form: str = "dockerconfigjson", type_: str | None = None) -> Secret:
    return Secret(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        type=type_ or f"kubernetes.io/{form}",
        data={f".{form}": base64.b64encode(text).decode()},
    )


def secret_login(name: str, password: str = "p", *, uid: str | None = None) -> Login:
    origin = SecretOrigin(namespace="default", name=name, uid=uid or f"uid-{name}")
    return Login(entry=Entry(username="u", password=password), origin=origin)
