"""Connects to an API server: its address, the authority to trust, and the credentials.

A service account, and a kubeconfig with a token, are read here; the rest by the package
`kubernetes`, which takes 10 MiB and a third of a second to load.
"""

import os
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import urllib3
import yaml

from mpsd.model.fields import FieldReader
from mpsd.model.problem import InvalidInput, shown
from mpsd.platform.kube import Access, Kube, Unavailable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOST = "KUBERNETES_SERVICE_HOST"
_READ_AGAIN_S = 60.0  # kubelet replaces a token well before it expires
_CONNECTIONS = 24  # that are kept: those of all calls at once, and of watches
_MMAP_THRESHOLD = -3  # of malloc.h
_USER_DEADLINE_S = 15.0  # of a call: people ask from far away, of thousands of nodes
_KNOWN_OF_CLUSTER = {
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "insecure-skip-tls-verify",
}


class NotPlain(Exception):
    """It takes more than is done here."""


def open_kube(kubeconfig: Path | None) -> Kube:
    """kubeconfig: None for the service account of the pod this runs in. Unavailable where it cannot
    be read; no request is made yet."""
    _return_memory()
    return Kube(_access([*filter(None, [kubeconfig])], "", os.environ))


def open_kube_of_user(
    kubeconfig: str | None, context: str | None, environment: Mapping[str, str] = os.environ
) -> Kube:
    """To the cluster that kubectl would ask. kubeconfig: a path, or several with colons between
    them; None: as kubectl finds it: KUBECONFIG, ~/.kube/config, else the service account.
    InvalidInput where there is no such file or context; no request is made yet."""
    chosen = _chosen(kubeconfig, context, environment)
    return Kube(_access(chosen.files, chosen.context, environment), deadline_s=_USER_DEADLINE_S)


def _return_memory() -> None:
    """glibc keeps blocks of up to 32 MiB once one was freed, for each thread; those of answers go
    back to the kernel, which took an agent with pods of 1.4 MiB from 104 to 83 MiB."""
    import ctypes  # a tool on a laptop reads little

    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 128 * 1024)


def _access(files: Sequence[Path], context: str, environment: Mapping[str, str]) -> Access:
    """files: none for the service account. context: empty for the files' current one."""
    with suppress(NotPlain):
        if not files:
            return of_service_account()
        if len(files) == 1:
            return of_kubeconfig(files[0], environment, context=context)
    from kubernetes import config  # it knows the rest, or says best what is wrong

    if not files:
        return _by_package(config.load_incluster_config)
    paths = os.pathsep.join(map(str, files))
    return _by_package(partial(config.load_kube_config, paths, context or None))


def namespace_of_user(
    kubeconfig: str | None, context: str | None, environment: Mapping[str, str] = os.environ
) -> str:
    """The context's, or that of the pod this runs in. InvalidInput as for a connection."""
    chosen = _chosen(kubeconfig, context, environment)
    if chosen.files:
        return chosen.namespace or "default"
    with suppress(OSError):
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or "default"
    return "default"


# -- what is read here


class TokenFile:
    """The token in a file, a minute old at most; while it cannot be read, the last one."""

    def __init__(self, file: Path) -> None:
        """OSError where it cannot be read at all, NotPlain where it is empty."""
        self._file = file
        self._token = file.read_text().strip()
        if not self._token:
            raise NotPlain(f"{file} is empty")
        self._read_at = time.monotonic()

    def __call__(self) -> Mapping[str, str]:
        if time.monotonic() - self._read_at > _READ_AGAIN_S:
            with suppress(OSError):
                self._token = self._file.read_text().strip() or self._token
                self._read_at = time.monotonic()
        return {"Authorization": f"Bearer {self._token}"}


def of_service_account(
    folder: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ
) -> Access:
    """The pod's own. NotPlain in no pod, or behind a proxy."""
    _without_proxy(environment)
    address, port = (environment.get(name, "") for name in (_HOST, "KUBERNETES_SERVICE_PORT"))
    authority = folder / "ca.crt"
    if not address or not port or not authority.is_file():
        raise NotPlain("no service account")
    if ":" in address:
        address = f"[{address}]"
    try:
        token = TokenFile(folder / "token")
        return Access(f"https://{address}:{port}", _pool(ca_certs=str(authority)), token)
    except OSError as error:
        raise NotPlain(str(error)) from None


def of_kubeconfig(
    file: Path, environment: Mapping[str, str] = os.environ, *, context: str = ""
) -> Access:
    """context: empty for the file's current one. NotPlain where more, or less, is in it."""
    _without_proxy(environment)
    try:
        read = yaml.safe_load(file.read_text())
        chosen = _named(read, "context", context or read["current-context"])
        cluster, user = (_named(read, kind, chosen[kind]) for kind in ("cluster", "user"))
        if not cluster.keys() <= _KNOWN_OF_CLUSTER or not user.keys() <= {"token", "tokenFile"}:
            raise NotPlain(f"{file}: more than a token, or a proxy")
        authorization = _authorization(user, file.parent)
        return Access(cluster["server"].rstrip("/"), _trusting(cluster, file.parent), authorization)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise NotPlain(f"{file}: {error}") from None


def _named(read: Any, kind: str, name: str) -> dict[str, Any]:
    return dict(next(one[kind] for one in read[f"{kind}s"] if one["name"] == name))


def _without_proxy(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if value and name.lower() in {"http_proxy", "https_proxy", "all_proxy"}:
            raise NotPlain("behind a proxy")


def _authorization(user: Mapping[str, Any], beside: Path) -> Callable[[], Mapping[str, str]]:
    """A token file goes before a token, as in client-go."""
    if user.get("tokenFile"):
        return TokenFile(beside / user["tokenFile"])
    if not user["token"]:
        raise NotPlain("no token")
    header = {"Authorization": f"Bearer {user['token']}"}
    return lambda: header


def _trusting(cluster: Mapping[str, Any], beside: Path) -> urllib3.PoolManager:
    """Data go before a file, as in client-go."""
    if cluster.get("insecure-skip-tls-verify"):
        # chosen in the kubeconfig
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return _pool(cert_reqs="CERT_NONE", assert_hostname=False)
    if data := cluster.get("certificate-authority-data"):
        return _pool(ca_cert_data=b64decode(data, validate=True).decode())
    if "certificate-authority" in cluster:
        return _pool(ca_certs=str(beside / cluster["certificate-authority"]))
    return _pool()


def _pool(cert_reqs: str = "CERT_REQUIRED", **how: Any) -> urllib3.PoolManager:
    return urllib3.PoolManager(maxsize=_CONNECTIONS, cert_reqs=cert_reqs, **how)


# -- by the package


def _by_package(load: Callable[..., Any]) -> Access:
    """Unavailable where it fails."""
    from kubernetes.client.api_client import ApiClient
    from kubernetes.client.configuration import Configuration

    configuration: Any = Configuration()
    try:
        load(client_configuration=configuration)
    # the package lets through whatever a file that is no kubeconfig makes it stumble over
    except Exception as error:
        raise Unavailable(f"the Kubernetes API cannot be reached: {error}") from error
    # chosen in the kubeconfig
    if not configuration.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def authorization() -> Mapping[str, str]:
        found = {}
        for entry in configuration.auth_settings().values():
            if entry["in"] == "header" and entry["value"]:
                found[entry["key"]] = entry["value"]
        return found

    pool = ApiClient(configuration).rest_client.pool_manager
    return Access(configuration.host, pool, authorization)


# -- the choice of a person


@dataclass(frozen=True, slots=True)
class _Chosen:
    files: Sequence[Path] = ()  # none for the service account of the pod this runs in
    context: str = ""
    namespace: str = ""  # empty where the context names none


def _chosen(kubeconfig: str | None, context: str | None, environment: Mapping[str, str]) -> _Chosen:
    variable = environment.get("KUBECONFIG")
    ways = {"--kubeconfig": kubeconfig, "KUBECONFIG": variable, "the kubeconfig": "~/.kube/config"}
    where, named = next((where, paths) for where, paths in ways.items() if paths)
    paths = map(Path, filter(None, named.split(os.pathsep)))
    files = [*filter(Path.is_file, map(Path.expanduser, paths))]
    if not files:
        if not kubeconfig and not variable and _HOST in environment:
            return _Chosen()
        raise _wrong(where, named, "is not there", "name one with --kubeconfig, or in KUBECONFIG")
    contexts, current = _contexts(where, files)
    wanted = context or current
    if wanted not in contexts:
        remedy = f"name one with --context: {', '.join(contexts) or 'there is none'}"
        if context:
            raise _wrong("--context", context, "is in no kubeconfig", remedy)
        raise _wrong(where, named, "names no current context", remedy)
    return _Chosen(files, wanted, contexts[wanted])


def _contexts(where: str, files: Sequence[Path]) -> tuple[dict[str, str], str]:
    """The contexts with their namespaces, and the current one; empty where none is named. The first
    of a name counts, as with kubectl."""
    contexts: dict[str, str] = {}
    current, shape = "", FieldReader()  # its problems are left to whatever connects
    for file in files:
        read = _read(where, file)
        for _path, entry in shape.entries(read, "contexts", ""):
            namespace = shape.text(shape.mapping(entry, "context", ""), "namespace", "")
            if isinstance(entry.get("name"), str):
                contexts.setdefault(shape.text(entry, "name", ""), namespace)
        current = current or str(read.get("current-context") or "")
    return contexts, current


def _read(where: str, file: Path) -> dict[str, Any]:
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        why = f"cannot be read: {' '.join(str(error).split())}"
        remedy = "see whether `kubectl config view` can"
        raise _wrong(where, str(file), why, remedy) from None
    if not isinstance(read, dict):
        raise _wrong(where, str(file), "is no kubeconfig", "check it with `kubectl config view`")
    return read


def _wrong(where: str, value: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput.of("kubeconfig", "kubeconfig", where, shown(value, 200), message, remedy)
