"""The parts of a support bundle, their index, and what of logs, configurations and Kubernetes objects is kept in them.

Everything is kept by name: fields of a log line, keys of a configuration, variables of an environment, words of the
daemon's messages. What has another name is left out, and the bundle marks where something was. The index names every
part that is not available, with the reason, and every part that was cut.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mpsd.model.events import COMPONENT
from mpsd.model.node_status import program_of
from mpsd.model.problem import InvalidInput

LEFT_OUT = "[left out]"
_LONGEST_LINE = 64 * 1024

# -- logs ------------------------------------------------------------------------------------------------------------

_LOG_FIELDS_WRITTEN = """
timestamp time level event role version action address after_s again certificate_ends changes configuration container
context_mib deadline_s devices domain drain_s driver ends error file forced gpu gpus grant grants hit holder id kind
made memory_mib message mode name namespace node nodes objects outcome part path pid pod pod_uid port programs readers
reason reasons registered request reserved reserved_percent resource root script secret served server sha256 sms
starts_later step subject thread_percent tls took_s until used_mib watched what
"""
_LOG_FIELDS = frozenset(_LOG_FIELDS_WRITTEN.split())
_JOURNAL = re.compile(r"(?P<before>\S+ \S+ (?P<program>[\w.@-]+)\[\d+\]: )(?P<message>.*)")
_OF_SYSTEMD = re.compile(
    r"mpsd[\w@.-]*\.service: (?:Main process exited, code=\w+, status=[\w/]+|Failed with result '[\w-]+'\."
    r"|Deactivated successfully\.|Scheduled restart job, restart counter is at \d+\."
    r"|Consumed [\w. ]+ CPU time\.|State '[\w-]+' timed out\. \w+\.|Start request repeated too quickly\.)"
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):|\s+File \"[^\"]+\", line \d+, in [\w<>.]+")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failed|Away|Group))\b.*")


def log_kept(text: str) -> str:
    """Lines of mpsd's own logs with the fields that are known; of other lines only how many there were."""
    return _lines_kept(text, _log_line)


def daemon_log_kept(text: str) -> str:
    """Lines of nvidia-cuda-mps-control's log with the words that its messages are known to have."""

    def line_kept(line: str) -> str:
        found = _DAEMON_LINE.fullmatch(line)
        return f"{found['before'] or ''}{_words_kept(found['message'])}" if found else LEFT_OUT

    return _lines_kept(text, line_kept)


def _lines_kept(text: str, kept_of: Callable[[str], str | None]) -> str:
    lines = [kept_of(line) if len(line) <= _LONGEST_LINE else None for line in text.splitlines() if line]
    kept = [line for line in lines if line is not None]
    if unknown := len(lines) - len(kept):
        kept.append(f"[{unknown} lines are not of a known form and left out]")
    return "".join(f"{line}\n" for line in kept)


def _log_line(line: str) -> str | None:
    if found := _JOURNAL.fullmatch(line):
        if found["program"] == "systemd":
            return line if _OF_SYSTEMD.fullmatch(found["message"]) else None
        message = _log_line(found["message"])
        return None if message is None else f"{found['before']}{message}"
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return json.dumps({name: _log_field(name, value) for name, value in fields.items()})
    if _TRACEBACK.fullmatch(line):
        return line
    exception = _EXCEPTION.fullmatch(line)
    return exception[1] if exception else None


def _log_field(name: str, value: Any) -> Any:
    kept_of = {"command": program_of, "text": _words_kept, "exception": log_kept}
    if name in kept_of and isinstance(value, str):
        return kept_of[name](value)
    if name == "environment" and isinstance(value, Mapping):
        return {key: text if _VARIABLE.fullmatch(key) else LEFT_OUT for key, text in value.items()}
    return value if name in _LOG_FIELDS else LEFT_OUT


_DAEMON_LINE = re.compile(r"(?P<before>\[[0-9-]+ [0-9:.]+ \w+ +[0-9]{1,10}\] )?(?P<message>.*)")
_DAEMON_WORDS_WRITTEN = """
are be did n/a progress there error-trigging error-triggering linux/unix device_query -t -uid a accept accepting
active all already anonymous applications associated assuming attributes backoff been being belonging binary by bytes
cannot client clients closed cmd command connect connected connecting connection context contexts control could
created creating credentials cuda current daemon default destroy destroyed device devices directory disabled
disconnected display down driver encountered enough env error exception execute exists exit exited exiting failed
fatal fault finish following for free from get gpu handling has have id ids in initializing initialized insufficient
is issued it limit limits list log mem meminfo memory mib modified mps name namespace new no not notified number
nvidia of on only open or ordinal other percentage pci pid pinned pipe priority privileges process processes ps query
quit ready received recevie refusing region requesting request reset running segment send sent server servers set
settings shared shm shutdown shutting socket start started starting startup status sticky succeeded teardown terminate
terminated termination the this thread threads timeout to torn total trigging triggering try trying ui uid unable unix
user using uuid valid version volta waiting who will with worker cuda_mps_pipe_directory cuda_visible_devices
get_server_status get_server_list get_device_pinned_mem_limit set_device_pinned_mem_limit
get_default_device_pinned_mem_limit set_default_device_pinned_mem_limit get_device_client_list get_client_list
set_active_thread_percentage get_active_thread_percentage set_default_active_thread_percentage
get_default_active_thread_percentage start_server shutdown_server terminate_client
"""
_DAEMON_WORDS = frozenset(_DAEMON_WORDS_WRITTEN.split())
_WORD = re.compile(r"[^\s,;:.={}()\[\]<>'\"!]+")
_KNOWN_WORD = re.compile(
    r"[0-9]{1,10}[MG]?|0x[0-9A-Fa-f]{1,16}|(?:GPU|MIG)-[0-9a-f-]{8,36}|[AHBLVTP][0-9]{1,4}[A-Z]{0,4}|-"
    r"|/(?:run|var|tmp|usr)(?:/[a-z0-9_.-]{1,40}){1,6}"
)


def _words_kept(text: str) -> str:
    def kept(word: re.Match[str]) -> str:
        return word[0] if word[0].casefold() in _DAEMON_WORDS or _KNOWN_WORD.fullmatch(word[0]) else LEFT_OUT

    return _WORD.sub(kept, text)


def faults_kept(error: InvalidInput) -> str:
    """What is wrong with a file, by place and rule, without the values in it."""
    return "; ".join(f"{found.where}: {found.rule}" for found in error.problems)


# -- configurations of container engines -----------------------------------------------------------------------------

_ENGINE_KEYS_WRITTEN = """
version runtime path runtimeType default-runtime default_runtime_name runtime_type runtime_engine runtime_root
BinaryName SystemdCgroup mpsd privileged_without_host_devices cgroup_manager
"""
_ENGINE_KEYS = frozenset(_ENGINE_KEYS_WRITTEN.split())


def engine_kept(value: Any) -> Any:
    """Of a decoded configuration the keys that name an engine's runtimes."""
    if not isinstance(value, Mapping):
        return LEFT_OUT
    maps = {key: engine_kept(inner) for key, inner in value.items() if isinstance(inner, Mapping)}
    known = {key: inner for key, inner in value.items() if key in _ENGINE_KEYS and key not in maps}
    return known | {key: inner for key, inner in maps.items() if inner}


# -- objects of Kubernetes -------------------------------------------------------------------------------------------

_OBJECT_KEYS_WRITTEN = """
apiVersion kind metadata name namespace uid generation resourceVersion creationTimestamp deletionTimestamp
ownerReferences controller items spec status type reason phase conditions lastTransitionTime lastProbeTime
lastUpdateTime lastHeartbeatTime observedGeneration replicas selector template containers initContainers image imageID
imagePullPolicy containerID volumeMounts mountPath readOnly mountPropagation subPath volumes hostPath path configMap
secret secretName emptyDir projected nodeName hostNetwork hostPID hostIPC hostIP podIP serviceAccountName
priorityClassName restartPolicy qosClass terminationGracePeriodSeconds tolerations key operator effect
tolerationSeconds resources ports containerPort hostPort port protocol securityContext privileged runAsUser
runAsNonRoot updateStrategy rollingUpdate maxUnavailable maxSurge strategy containerStatuses initContainerStatuses
state lastState waiting running terminated ready started restartCount exitCode signal startedAt finishedAt startTime
availableReplicas readyReplicas updatedReplicas unavailableReplicas currentNumberScheduled desiredNumberScheduled
numberAvailable numberMisscheduled numberReady numberUnavailable updatedNumberScheduled subsets addresses
notReadyAddresses ip targetRef count firstTimestamp lastTimestamp eventTime involvedObject source component host
reportingComponent webhooks clientConfig service failurePolicy matchPolicy sideEffects timeoutSeconds
reinvocationPolicy admissionReviewVersions rules apiGroups apiVersions operations scope namespaceSelector
objectSelector matchExpressions values taints nodeInfo
"""
_OBJECT_KEYS = frozenset(_OBJECT_KEYS_WRITTEN.split())
_LABEL = re.compile(
    r"(?:app|node|node-role|topology|beta|failure-domain\.beta)?\.?kubernetes\.io/[\w./-]+"
    r"|mpsd\.io/[\w.-]+|ack\.[\w./-]+|(?:[\w-]+\.)*(?:aliyun|alibabacloud)\.com/[\w./-]+|aliyun\.accelerator/[\w.-]+"
    r"|nvidia\.com/[\w.-]+|(?:ALIYUN_COM_GPU_|NVIDIA_)\w+|scheduler\.framework\.gpushare\.[\w./-]+"
)
_LONGEST_LABEL = 2048  # annotations of gpushare's kind are JSON
_QUANTITY = re.compile(r"-?[0-9.]{1,20}(?:[numkKMGTPE]i?)?")
_VARIABLE = re.compile(
    r"(?:MPSD_|CUDA_MPS_|NVIDIA_|ALIYUN_COM_GPU_)\w+|AMP_VGPU_ENABLE|GPU_(?:MEM|UTIL)_PER_DEVICE|EGPU"
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER"
)
_OPTION = re.compile(r"(?P<option>--[a-z][a-z-]{0,40})(?:=.*)?", re.DOTALL)
_PROGRAMS = frozenset({"mpsd", "agent", "control", "webhook", "scheduler"})
_CONTROLLERS = {"daemonset-controller", "deployment-controller", "replicaset-controller"}
_SPEAKERS = {*_CONTROLLERS, COMPONENT, "kubelet", "default-scheduler"}


def object_kept(value: Any) -> Any:
    """Of an object of Kubernetes, or a list of them, the fields that are known. MPSNodes are `mpsnode_kept`."""
    if isinstance(value, Mapping):
        kept = {key: _field_kept(key, inner, value) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None}
    return [object_kept(inner) for inner in value] if isinstance(value, list | tuple) else value


def mpsnode_kept(thing: Mapping[str, Any]) -> dict[str, Any]:
    """spec and status have a schema, and are mpsd's own."""
    return {**object_kept(thing), "spec": thing.get("spec"), "status": thing.get("status")}


def _field_kept(key: str, value: Any, of: Mapping[str, Any]) -> Any:
    match key, value:
        case ("message", _):  # what anybody may write but where the writer is known, or it is of mpsd's own condition
            source = of.get("source")
            writer = source.get("component") if isinstance(source, Mapping) else None
            return value if writer in _SPEAKERS or of.get("type") == "MPSReady" else None
        case ("labels" | "annotations" | "matchLabels" | "nodeSelector", _):
            return labels_kept(value)
        case ("limits" | "requests" | "capacity" | "allocatable", Mapping()):
            return {name: amount for name, amount in value.items() if _QUANTITY.fullmatch(str(amount))}
        case ("env", list()):
            return environment_kept(value)
        case ("args" | "command", list()):
            return arguments_kept(value)
        case ("nodeInfo", Mapping()):
            return dict(value)
        case _:
            return object_kept(value) if key in _OBJECT_KEYS else None


def labels_kept(value: Any) -> Any:
    """Of labels or annotations those of Kubernetes, of NVIDIA, of mpsd and of whose names it reads."""
    if not isinstance(value, Mapping):
        return None
    return {key: text for key, text in value.items() if _LABEL.fullmatch(key) and len(str(text)) <= _LONGEST_LABEL}


def environment_kept(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Every variable by its name, and the values of mpsd's and of NVIDIA's own."""
    return [
        {"name": name, "value": entry.get("value") if _VARIABLE.fullmatch(name) else LEFT_OUT}
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(name := entry.get("name"), str)
    ]


def arguments_kept(words: Sequence[Any]) -> list[str]:
    """mpsd's own words and the names of options; what an option is set to is left out."""
    options = [(str(word), _OPTION.fullmatch(str(word))) for word in words]
    return [option["option"] if option else word if word in _PROGRAMS else LEFT_OUT for word, option in options]


# -- the parts and their index ---------------------------------------------------------------------------------------

MOST_BYTES = 2 * 1024**2  # of a part
MOST_IN_ALL = 64 * 1024**2
INDEX = "INDEX.txt"
_CREDENTIALS = re.compile(r"://[^\s/]*@")


@dataclass(frozen=True, slots=True)
class BundlePart:
    """A file. about: what it is, as the end of a sentence. missing: why it is not available; empty where it is."""

    file: str
    about: str
    text: str = ""
    missing: str = ""


def json_text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def missing_part(file: str, about: str, why: str) -> BundlePart:
    return BundlePart(file, about, missing=" ".join(_CREDENTIALS.sub("://", why).split()) or "no reason given")


def cut(text: str, most_bytes: int = MOST_BYTES) -> tuple[bytes, int]:
    """As it is written, and how many bytes of its beginning are not; the end of a log is worth more. Where it is too
    long: its end from a new line on, after a line that reports this. The whole is never longer.
    """
    data = text.encode(errors="replace")
    if len(data) <= most_bytes:
        return data, 0
    notice = b"[%d bytes before this are left out]\n"
    room = max(0, most_bytes - len(notice % len(data)))
    end = data[len(data) - room :]
    end = end[end.find(b"\n") + 1 :] if b"\n" in end[:-1] else end
    left_out = len(data) - len(end)
    return (notice % left_out + end)[:most_bytes] if room else b"", left_out


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index reports of a part. size, left_out: bytes."""

    part: BundlePart
    size: int
    left_out: int = 0

    def __str__(self) -> str:
        missing = f": {self.part.missing}" if self.part.missing else ""
        cut_words = f" (its last {self.size} bytes; {self.left_out} before them are left out)" if self.left_out else ""
        return f"{self.part.file}: {self.part.about}{missing}{cut_words}"


def index(of: str, version: str, made_at: str, entries: Sequence[IndexEntry]) -> str:
    """of: what the bundle is of, such as `node gpu-a1`. made_at: for people."""
    missing = [str(entry) for entry in entries if entry.part.missing]
    lines = [f"Support bundle of {of}, made by mpsd {version} at {made_at}", ""]
    lines += ["Only what is known to be harmless is included; [left out] is in the place of other values.", ""]
    lines += [str(entry) for entry in entries if not entry.part.missing]
    return "\n".join([*lines, "", f"Not here: {len(missing)}", *missing]) + "\n"
