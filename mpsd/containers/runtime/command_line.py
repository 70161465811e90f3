"""The command line of an OCI runtime, as runc and crun read it, with mpsd-runtime's own flags among the global ones.

What is not known is handed on as it came; only the own flags are taken out.
"""

from mpsd.containers.dialects.names import COMMANDS
from mpsd.containers.runtime.json_text import ContainerRefused, shown

_OWN = ("next", "run-dir", "runtime-log")
_OWN_HELP = "help-mpsd"
_GLOBAL = ("root", "log", "log-format", "criu", "rootless", "cgroup-manager", "log-level")  # the last two: crun's
_GLOBAL_FLAGS = ("debug", "systemd-cgroup", "help", "h", "version", "v")

_CREATE = ("bundle", "console-socket", "pid-file", "preserve-fds", "pidfd-socket", "config")
_CREATE_FLAGS = ("no-pivot", "no-new-keyring", "detach", "keep", "no-subreaper", "no-mount-fallback", "help")
_CREATE_SHORT = {"b": "bundle", "d": "detach", "f": "config", "h": "help"}
_EXEC = (
    *("console-socket", "cwd", "env", "user", "additional-gids", "process", "pid-file", "process-label", "apparmor"),
    *("cap", "preserve-fds", "cgroup", "pidfd-socket"),
)
_EXEC_FLAGS = ("tty", "detach", "no-new-privs", "ignore-paused", "no-subreaper", "help")
_EXEC_SHORT = {
    "e": "env", "u": "user", "g": "additional-gids", "p": "process", "c": "cap", "t": "tty", "d": "detach", "h": "help"
}  # fmt: skip


class CommandLine:
    """own: mpsd-runtime's flags that were given, by name. options: global ones with their values. passed: what the next
    runtime is given. command: empty where there is none. arguments: what follows it.
    """

    def __init__(self) -> None:
        self.own: dict[str, str] = {}
        self.options: dict[str, str] = {}
        self.flags: set[str] = set()
        self.passed: list[str] = []
        self.command = ""
        self.arguments: list[str] = []
        self.root = ""
        self.container = ""

    @property
    def wants_help(self) -> bool:
        """Of the whole program, not of one command."""
        return bool(self.flags & {"help", "h"}) or (self.command in {"help", "h"} and not self.arguments)

    @property
    def wants_own_help(self) -> bool:
        return _OWN_HELP in self.flags


def read(argv: list[str]) -> CommandLine:
    """The command line, without the program's name."""
    line = CommandLine()
    unsure = False  # after an unknown option, a word may be its value
    at = 0
    while at < len(argv):
        word = argv[at]
        if not _is_option(word):
            if unsure and word not in COMMANDS:
                line.passed.append(word)
                at += 1
                continue
            line.command, line.arguments = word, argv[at + 1 :]
            break
        if word == "--":
            line.command, line.arguments = "".join(argv[at + 1 : at + 2]), argv[at + 2 :]
            break
        name, equals, value = word.lstrip("-").partition("=")
        end = at + 1
        if name in (*_OWN, *_GLOBAL):
            if not equals:
                value, end = "".join(argv[at + 1 : at + 2]), at + 2
            (line.own if name in _OWN else line.options)[name] = value
        elif name in _GLOBAL_FLAGS or name == _OWN_HELP:
            line.flags.add(name)
        elif not equals:
            unsure = True
        if name not in _OWN and name != _OWN_HELP:
            line.passed += argv[at:end]
        at = end
    line.passed += argv[at:]
    return line


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


class Options:
    """values: by long name; flags by theirs, with no value. words: the positional arguments."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.words: list[str] = []
        self.unknown: list[str] = []


def of_create(arguments: list[str]) -> Options:
    """Of `create` and `run`, whose options may follow the id too. Refused where an unknown one hides the id."""
    options = _options(arguments, _CREATE, _CREATE_FLAGS, _CREATE_SHORT, mixed=True)
    hidden = len(options.words) != 1 or any(not word.startswith("--") for word in options.unknown)
    if options.unknown and hidden:
        names = ", ".join(shown(word) for word in options.unknown)
        raise ContainerRefused(
            f"mpsd-runtime does not know the option {names}; write its value as --NAME=VALUE, or leave it out"
        )
    return options


def of_exec(arguments: list[str]) -> Options:
    """Of `exec`, whose options end at the id."""
    return _options(arguments, _EXEC, _EXEC_FLAGS, _EXEC_SHORT, mixed=False)


def _options(
    arguments: list[str], valued: tuple[str, ...], flags: tuple[str, ...], short: dict[str, str], *, mixed: bool
) -> Options:
    found = Options()
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word == "--" or not (_is_option(word) or mixed):
            found.words += arguments[at - (word != "--") :]
            break
        if not _is_option(word):
            found.words.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = short.get(name, name)
        if name in valued and not equals:
            value = "".join(arguments[at : at + 1])
            at += 1
        if name in valued or name in flags:
            found.values[name] = value
        elif not equals:
            found.unknown.append(word)
    return found
