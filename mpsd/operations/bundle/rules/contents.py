"""What a support bundle takes: the listed fields, and nothing else; and its index."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from mpsd.model.events import COMPONENT
from mpsd.model.names import NAMESPACE
from mpsd.model.problem import InvalidInput, program_of
from mpsd.mps.rules.control_protocol import read_line

_LONGEST_LINE = 64 * 1024

# -- logs

# The fields that mpsd's programs log, without those that hold what a tenant or the daemon wrote.
_LOG_FIELDS_WRITTEN = """
timestamp level event role part exception command reason reasons error action address after_s again
before certificate_ends cgroup changes claim claims configuration container context_mib
deadline_s devices domain domains drain_s driver ends file forced gone gpu gpus grant grants hit
holder how id kind made memory_mib message mode name namespace new node nodes objects outcome
path pid pids pod pod_uid port programs readers registered request reserved
reserved_percent resource root script secret served server sha256 sms starts_later step stopped_s
subject taint thread_percent tls took_s until used_mib version watched what
"""
_LOG_FIELDS = frozenset(_LOG_FIELDS_WRITTEN.split())
_JOURNAL = re.compile(r"(?P<before>\S+ \S+ (?P<program>[\w.@-]+)\[\d+\]: )(?P<message>.*)")
_OF_SYSTEMD = re.compile(
    r"mpsd[\w@.-]*\.service: (?:Main process exited, code=\w+, status=[\w/]+"
    r"|Failed with result '[\w-]+'\.|Start request repeated too quickly\.)"
)
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):|\s+File \"[^\"]+\", line \d+, in \S+"
)
_EXCEPTION = re.compile(
    r"([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failed|Away|Group))\b.*"
)


def log_kept(text: str) -> str:
    """Lines of mpsd's own logs with the fields that are listed; of other lines how many."""
    return _lines_kept(text, _log_line)


def _log_line(line: str) -> str | None:
    if found := _JOURNAL.fullmatch(line):
        message: str | None = found["message"]
        if found["program"] != "systemd":
            message = _log_line(found["message"])
        elif not _OF_SYSTEMD.fullmatch(found["message"]):
            message = None
        return message and f"{found['before']}{message}"
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        kept = {name: value for name, value in fields.items() if name in _LOG_FIELDS}
        if "command" in kept:
            kept["command"] = program_of(str(kept["command"]))
        if "exception" in kept:
            kept["exception"] = log_kept(str(kept["exception"]))
        return json.dumps(kept)
    if exception := _EXCEPTION.fullmatch(line):
        return exception[1]
    return _TRACEBACK.fullmatch(line) and line


def _lines_kept(text: str, kept_of: Callable[[str], str | None]) -> str:
    lines = [line for line in text.splitlines() if line]
    taken = [kept_of(line) for line in lines if len(line) <= _LONGEST_LINE]
    kept = [line for line in taken if line is not None]
    unknown = len(lines) - len(kept)
    if unknown:
        kept.append(f"[{unknown} lines are not of a known form and left out]")
    return "".join(f"{line}\n" for line in kept)


def daemon_log_kept(text: str) -> str:
    """Of each line of the daemon's log what it reports, without its words, which may be
    those of anybody who connects."""

    def line_kept(line: str) -> str | None:
        if not (found := read_line(line)):
            return None
        if found.pid:
            return f"{found.when} {found.event}: {found.pid}"
        return f"{found.when} {found.event}"

    return _lines_kept(text, line_kept)


def faults_kept(error: InvalidInput) -> str:
    """What is wrong with a file, by place and rule, without the values in it."""
    return "; ".join(f"{found.where}: {found.rule}" for found in error.problems)


# -- objects of Kubernetes

_LABELS = ("mpsd.io/", "ack.", "aliyun.", "nvidia.com/", "kubernetes.io/", "node.kubernetes.io/")
_SPEAKERS = {"kubelet", "default-scheduler", "daemonset-controller", "replicaset-controller"}
_OF_EVENT = ("reason", "message", "count", "firstTimestamp", "lastTimestamp")


def labels_kept(labels: Mapping[str, str]) -> dict[str, str]:
    """Those of mpsd, Kubernetes, NVIDIA and Alibaba Cloud."""
    return {key: text for key, text in labels.items() if key.startswith(_LABELS)}


def settings_kept(environment: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a container's environment mpsd's own variables."""
    named = {str(one.get("name")): one.get("value") for one in environment}
    return {name: text for name, text in named.items() if name.startswith("MPSD_")}


def events_kept(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of agents, and those on objects in mpsd's namespace by what Kubernetes consists of."""
    kept = []
    for event in events:
        of = event.get("involvedObject") or {}
        writer = (event.get("source") or {}).get("component")
        if writer == COMPONENT or (of.get("namespace") == NAMESPACE and writer in _SPEAKERS):
            named = {name: of.get(name) for name in ("kind", "namespace", "name")}
            kept.append({name: event.get(name) for name in _OF_EVENT} | {"by": writer, "of": named})
    return kept


# -- the parts and their index

MOST_BYTES = 2 * 1024**2  # of a part
MOST_IN_ALL = 64 * 1024**2
INDEX = "INDEX.txt"
_CREDENTIALS = re.compile(r"://[^\s/]*@")


@dataclass(frozen=True, slots=True)
class BundlePart:
    """A file of a bundle, or why there is none."""

    file: str
    #: What it is, as the end of a sentence.
    about: str
    text: str = ""
    #: Why it is not available; empty where it is.
    missing: str = ""


def json_text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=1).decode() + "\n"


def missing_part(file: str, about: str, why: str) -> BundlePart:
    reason = " ".join(_CREDENTIALS.sub("://", why).split())
    return BundlePart(file, about, missing=reason or "no reason given")


def cut(part: BundlePart, most_bytes: int = MOST_BYTES) -> BundlePart:
    """The part; where it is too long its end, from a new line on."""
    data = part.text.encode(errors="replace")
    if len(data) <= most_bytes:
        return part
    end = data[len(data) - most_bytes :]
    if b"\n" in end[:-1]:
        end = end[end.find(b"\n") + 1 :]
    about = f"{part.about} (its last {len(end)} bytes of {len(data)})"
    return replace(part, about=about, text=end.decode(errors="ignore"))


def index(title: str, parts: Sequence[BundlePart]) -> str:
    there = [f"{part.file}: {part.about}" for part in parts if not part.missing]
    missing = [f"{part.file}: {part.about}: {part.missing}" for part in parts if part.missing]
    lines = [title, "", "Only files and fields that mpsd lists are in it.", "", *there, ""]
    return "\n".join([*lines, f"Not here: {len(missing)}", *missing]) + "\n"
