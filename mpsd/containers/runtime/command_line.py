"""The command line of an OCI runtime, as runc and crun read it, with mpsd-runtime's own flags among
the global ones; only these are taken out."""

from mpsd.containers.dialects.names import COMMANDS
from mpsd.containers.runtime.json_text import ContainerRefused, shown

_OWN = ("next", "run-dir", "runtime-log")
_OWN_HELP = "help-mpsd"
# the last two: crun's
_GLOBAL = ("root", "log", "log-format", "criu", "rootless", "cgroup-manager", "log-level")
_GLOBAL_FLAGS = ("debug", "systemd-cgroup", "version", "v", _OWN_HELP)

_CREATE = ("bundle", "console-socket", "pid-file", "preserve-fds", "pidfd-socket", "config")
_CREATE_FLAGS = (
    *("no-pivot", "no-new-keyring", "detach", "keep", "no-subreaper", "no-mount-fallback"),
)
_CREATE_SHORT = {"b": "bundle", "d": "detach", "f": "config"}
_EXEC = (
    *("console-socket", "pid-file", "preserve-fds", "pidfd-socket", "process"),
    *("cwd", "env", "user", "additional-gids", "process-label", "apparmor", "cap", "cgroup"),
)
_EXEC_FLAGS = ("tty", "detach", "no-new-privs", "ignore-paused", "no-subreaper")
_EXEC_SHORT = {"e": "env", "u": "user", "g": "additional-gids", "p": "process", "c": "cap"}
_EXEC_SHORT |= {"t": "tty", "d": "detach"}
_SIGNAL_FLAGS = ("all", "force", "regex")
_SIGNAL_SHORT = {"a": "all", "f": "force", "r": "regex"}
_OFF = {"0", "f", "false"}  # as Go's strconv.ParseBool has it, in any case


class CommandLine:
    """own: mpsd-runtime's flags. options: global ones. passed: to the next runtime. command: may be
    empty. root: of the next runtime's state; container: the one created or entered; both once
    known."""

    def __init__(self, found: "Options") -> None:
        self.own = {name: value for name, value in found.values.items() if name in _OWN}
        self.options = {name: value for name, value in found.values.items() if name in _GLOBAL}
        self.passed = found.passed
        self.command = "".join(found.rest[:1])
        self.arguments = found.rest[1:]
        self.wants_own_help = _OWN_HELP in found.values
        # of the whole program
        asks = self.command in {"help", "h"} and not self.arguments
        self.wants_help = asks or "help" in found.values
        self.root = self.container = ""

    @property
    def run_directory(self) -> str:
        return self.own["run-dir"]


def read(argv: list[str]) -> CommandLine:
    return CommandLine(_options(argv, (*_OWN, *_GLOBAL), _GLOBAL_FLAGS, {}, known=COMMANDS))


class Options:
    """values: by long name; of flags empty. words: positional. rest: from where the options end.
    passed: all but mpsd-runtime's own flags."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.words: list[str] = []
        self.unknown: list[str] = []
        self.rest: list[str] = []
        self.passed: list[str] = []


def of_create(arguments: list[str]) -> Options:
    """Also after the id. Refused where an unknown option hides the id."""
    options = _options(arguments, _CREATE, _CREATE_FLAGS, _CREATE_SHORT, mixed=True)
    hidden = len(options.words) != 1 or any(not word.startswith("--") for word in options.unknown)
    if options.unknown and hidden:
        names = ", ".join(shown(word) for word in options.unknown)
        remedy = "write its value as --NAME=VALUE, or leave it out"
        raise ContainerRefused(f"mpsd-runtime does not know the option {names}; {remedy}")
    return options


def of_exec(arguments: list[str]) -> Options:
    """They end at the id."""
    return _options(arguments, _EXEC, _EXEC_FLAGS, _EXEC_SHORT)


def of_signal(arguments: list[str]) -> Options:
    """Also after the id. values: of flags, those that are on."""
    options = _options(arguments, (), _SIGNAL_FLAGS, _SIGNAL_SHORT, mixed=True)
    options.values = {
        name: value for name, value in options.values.items() if value.lower() not in _OFF
    }
    return options


def _options(
    arguments: list[str],
    valued: tuple[str, ...],
    flags: tuple[str, ...],
    short: dict[str, str],
    *,
    mixed: bool = False,
    known: tuple[str, ...] = (),
) -> Options:
    """mixed: options may follow positional words. known: the words that end the options even after
    an unknown option, whose value any other word may be; empty for all."""
    found = Options()
    at = 0
    while at < len(arguments):
        word = arguments[at]
        begin = at
        at = at + 1
        is_option = word.startswith("-") and word != "-"
        may_be_value = known and found.unknown and word not in known
        if word == "--" or not (is_option or mixed or may_be_value):
            found.rest = arguments[begin:]
            if word == "--":
                found.rest = arguments[at:]
            found.words += found.rest
            found.passed += arguments[begin:]
            break
        if not is_option:
            found.words.append(word)
            found.passed.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = {"h": "help", **short}.get(name, name)
        if name in valued and not equals:
            value = "".join(arguments[at : at + 1])
            at = at + 1
        if name in (*valued, *flags, "help"):
            found.values[name] = value
        elif not equals:
            found.unknown.append(word)
        if name not in (*_OWN, _OWN_HELP):
            found.passed += arguments[begin:at]
    return found
