"""Stubs and servers of gRPC services, made from the descriptors in `pykubelet.wire`.

The agent itself calls and serves by method path, so that no generated service code is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass


class Stub:
    """The methods of one service as callables: `Stub(channel, cri_pb2, "RuntimeService").Version(request)`."""

    def __init__(self, channel: Any, module: ModuleType, service: str) -> None:
        self._methods: dict[str, Any] = {}
        for method, path, request, response in _methods(module, service):
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            self._methods[method.name] = make(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return self._methods[name]
        except KeyError:
            raise AttributeError(name) from None


def add_service(server: grpc.aio.Server, module: ModuleType, service: str, servicer: object) -> None:
    """Serve every method of the service by the servicer's method of the same name."""
    handlers = {}
    for method, _, request, response in _methods(module, service):
        make: Any = grpc.unary_unary_rpc_method_handler
        if method.server_streaming:
            make = grpc.unary_stream_rpc_method_handler
        handlers[method.name] = make(
            getattr(servicer, method.name),
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )
    name = module.DESCRIPTOR.services_by_name[service].full_name
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])


def _methods(module: ModuleType, service: str) -> Iterator[tuple[Any, str, Any, Any]]:
    found = module.DESCRIPTOR.services_by_name[service]
    for method in found.methods:
        messages = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        yield method, f"/{found.full_name}/{method.name}", *messages
