"""Settings of the HTTPS server: addresses, TLS, who may call, which handlers are on.

Names, defaults and flags are those of KubeletConfiguration v1beta1.
Does not cover the client side towards the API server (schema_node.py).
"""

from __future__ import annotations

from pykubelet.settings.flag_forms import IP_ADDRESS
from pykubelet.settings.kinds import (
    BOOL,
    DURATION,
    INT32,
    PATH,
    STRING,
    STRINGS,
    ListOf,
    SettingsGroup,
    nested,
    setting,
)


class X509Authentication(SettingsGroup):
    client_ca_file: str = setting(
        "clientCAFile",
        PATH,
        "",
        "CA bundle for client certificates; the common name is the user, the organizations are the groups.",
        flag="client-ca-file",
    )


class WebhookAuthentication(SettingsGroup):
    enabled: bool = setting(
        "enabled",
        BOOL,
        True,
        "Check bearer tokens with the TokenReview API.",
        flag="authentication-token-webhook",
        optional=True,
        legacy=False,
    )
    cache_ttl: float = setting(
        "cacheTTL",
        DURATION,
        120.0,
        "How long the answer to a token is remembered.",
        flag="authentication-token-webhook-cache-ttl",
    )


class AnonymousAuthentication(SettingsGroup):
    enabled: bool = setting(
        "enabled",
        BOOL,
        False,
        "Let requests without credentials in as system:anonymous, group system:unauthenticated.",
        flag="anonymous-auth",
        optional=True,
        legacy=True,
    )


class Authentication(SettingsGroup):
    x509: X509Authentication = nested("x509", X509Authentication, "Client certificates.")
    webhook: WebhookAuthentication = nested("webhook", WebhookAuthentication, "Bearer tokens.")
    anonymous: AnonymousAuthentication = nested("anonymous", AnonymousAuthentication, "Requests without credentials.")


class WebhookAuthorization(SettingsGroup):
    cache_authorized_ttl: float = setting(
        "cacheAuthorizedTTL",
        DURATION,
        300.0,
        "How long a yes of the API server is remembered.",
        flag="authorization-webhook-cache-authorized-ttl",
    )
    cache_unauthorized_ttl: float = setting(
        "cacheUnauthorizedTTL",
        DURATION,
        30.0,
        "How long a no of the API server is remembered.",
        flag="authorization-webhook-cache-unauthorized-ttl",
    )


class Authorization(SettingsGroup):
    mode: str = setting(
        "mode",
        STRING,
        "Webhook",
        "AlwaysAllow, or Webhook to ask the API server with SubjectAccessReview.",
        flag="authorization-mode",
        legacy="AlwaysAllow",
    )
    webhook: WebhookAuthorization = nested("webhook", WebhookAuthorization, "Caching of answers.")


class ServerSettings(SettingsGroup):
    """The HTTPS server, the read-only server and the health server."""

    enable_server: bool = setting(
        "enableServer", BOOL, True, "Run the HTTPS server.", flag="enable-server", optional=True
    )
    address: str = setting(
        "address",
        STRING,
        "0.0.0.0",
        "Address the HTTPS and the read-only server listen on.",
        flag="address",
        flag_form=IP_ADDRESS,
    )
    port: int = setting("port", INT32, 10250, "Port of the HTTPS server, 1 to 65535.", flag="port")
    read_only_port: int = setting(
        "readOnlyPort",
        INT32,
        0,
        "Port of the plain HTTP server without authentication; 0 turns it off.",
        flag="read-only-port",
        legacy=10255,
    )
    tls_cert_file: str = setting(
        "tlsCertFile",
        PATH,
        "",
        "Serving certificate, followed by its chain. Empty: one is made or requested.",
        flag="tls-cert-file",
    )
    tls_private_key_file: str = setting(
        "tlsPrivateKeyFile", PATH, "", "Key of the serving certificate.", flag="tls-private-key-file"
    )
    tls_cipher_suites: tuple[str, ...] = setting(
        "tlsCipherSuites",
        STRINGS,
        (),
        "Allowed cipher suites by their IANA names; TLS 1.3 suites cannot be chosen.",
        flag="tls-cipher-suites",
    )
    tls_curve_preferences: tuple[int, ...] = setting(
        "tlsCurvePreferences",
        ListOf(INT32),
        (),
        "Allowed key exchange groups by number: 23 is P-256, 29 X25519, 4588 X25519MLKEM768.",
    )
    tls_min_version: str = setting(
        "tlsMinVersion",
        STRING,
        "",
        "Lowest TLS version: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13. Empty: 1.2.",
        flag="tls-min-version",
    )
    rotate_certificates: bool = setting(
        "rotateCertificates",
        BOOL,
        False,
        "Renew the client certificate through certificate signing requests.",
        flag="rotate-certificates",
    )
    server_tls_bootstrap: bool = setting(
        "serverTLSBootstrap",
        BOOL,
        False,
        "Get the serving certificate through a certificate signing request instead of self-signing one.",
        flag="rotate-server-certificates",
    )
    authentication: Authentication = nested("authentication", Authentication, "Who a caller is.")
    authorization: Authorization = nested("authorization", Authorization, "What a caller may do.")
    enable_debugging_handlers: bool = setting(
        "enableDebuggingHandlers",
        BOOL,
        True,
        "Offer exec, attach, logs, port forwarding, running pods and the debug pages.",
        flag="enable-debugging-handlers",
        optional=True,
    )
    enable_contention_profiling: bool = setting(
        "enableContentionProfiling",
        BOOL,
        False,
        "Watch what holds the event loop up, for /debug/pprof/block.",
        flag="contention-profiling",
    )
    enable_profiling_handler: bool = setting(
        "enableProfilingHandler", BOOL, True, "Offer /debug/pprof/.", optional=True
    )
    enable_debug_flags_handler: bool = setting(
        "enableDebugFlagsHandler", BOOL, True, "Offer PUT /debug/flags/v.", optional=True
    )
    enable_system_log_handler: bool = setting(
        "enableSystemLogHandler", BOOL, True, "Offer GET /logs/ over the machine's log folder.", optional=True
    )
    enable_system_log_query: bool = setting(
        "enableSystemLogQuery",
        BOOL,
        False,
        "Allow queries on /logs/; needs enableSystemLogHandler.",
        optional=True,
    )
    healthz_port: int = setting(
        "healthzPort",
        INT32,
        10248,
        "Port of the health server; 0 turns it off.",
        flag="healthz-port",
        optional=True,
    )
    healthz_bind_address: str = setting(
        "healthzBindAddress",
        STRING,
        "127.0.0.1",
        "Address of the health server.",
        flag="healthz-bind-address",
        flag_form=IP_ADDRESS,
    )
    streaming_connection_idle_timeout: float = setting(
        "streamingConnectionIdleTimeout",
        DURATION,
        14400.0,
        "Deprecated. How long the reader of a log or a stream may take nothing before the connection is closed.",
        flag="streaming-connection-idle-timeout",
    )
