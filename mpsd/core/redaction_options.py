"""Takes passwords out of commands whose programs take them by an option of one letter, such as `mysql -pSECRET`.

One rule: such a letter counts only behind a program that is known to take a secret by it, for `-p` is a port elsewhere.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from mpsd.core.secret_names import GONE

_MYSQL, _MONGO, _LDAP = "p", "p", "wy"
# By program, the letters. With a space, what else must be said before: `docker run -p` is a port.
_LETTERS: Mapping[str, str] = {
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mysqlcheck"), _MYSQL),
    **dict.fromkeys(("mariadb", "mariadb-dump", "mariadb-admin", "mariadb-check"), _MYSQL),
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore", "mongoexport", "mongoimport"), _MONGO),
    **dict.fromkeys(("ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami", "ldappasswd"), _LDAP),
    **dict.fromkeys(("zip", "unzip", "sqlcmd", "bcp", "ipmitool"), "P"),
    **dict.fromkeys(("docker login", "podman login", "nerdctl login", "buildah login", "skopeo login"), "p"),
    **dict.fromkeys(("az login", "oc login", "helm login"), "p"),
    **dict.fromkeys(("sshpass", "7z", "7za"), "p"),
    "redis-cli": "a",
    "curl": "uU",
}
_WORD_OF = {name.partition(" ")[0]: name.partition(" ")[2] for name in _LETTERS}
_LETTERS_OF = {name.partition(" ")[0]: letters for name, letters in _LETTERS.items()}
_FIRST = "|".join(sorted(map(re.escape, _WORD_OF), key=len, reverse=True))
_PROGRAM = re.compile(rf"(?<![\w.-])(?P<program>{_FIRST})(?![\w.-])")
_COMMAND_ENDS = re.compile(r"[\n;|]|&&|\\n")
_BY_LETTERS = {
    letters: re.compile(
        rf"(?P<before>(?<![^\s\"'])-[{letters}](?:[ \t]{{1,4}}|=|\\{{0,3}}[\"'],\s{{0,8}})?)"
        r"(?P<value>\\{0,3}\"[^\"\n]*+\"|\\{0,3}'[^'\n]*+'|(?!\[redacted\])(?![-\s\"',\\])[^\s\"'\\]+)"
    )
    for letters in {*_LETTERS.values()}
}


def without_passwords(text: str) -> str:
    """The text without what its commands say by such options."""
    kept: list[str] = []
    end = 0
    for found, until in _commands(text):
        program, command = found["program"], text[found.end() : until]
        if re.search(rf"\b{_WORD_OF[program]}\b", command) if _WORD_OF[program] else True:
            kept += [text[end : found.end()], _BY_LETTERS[_LETTERS_OF[program]].sub(_gone, command)]
            end = until
    return "".join([*kept, text[end:]])


def _commands(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Each program, and where its command ends: with a line or a pipe, or where another program is named."""
    programs = [*_PROGRAM.finditer(text)]
    for found, after in zip(programs, [*(one.start() for one in programs[1:]), len(text)], strict=False):
        over = _COMMAND_ENDS.search(text, found.end(), after)
        yield found, over.start() if over else after


def _gone(found: re.Match[str]) -> str:
    return f"{found['before']}{GONE}"


def password_words(words: Sequence[object]) -> frozenset[int]:
    """Of a command in words, the places of those that are secrets, or begin with the option that has one."""
    places = set()
    letters = ""
    needed = ""
    for place, word in enumerate(words):
        if not isinstance(word, str):
            continue
        name = word.rpartition("/")[2]
        if name in _LETTERS_OF:
            letters, needed = _LETTERS_OF[name], _WORD_OF[name]
        needed = "" if word == needed else needed
        if letters and not needed and word[:1] == "-" and word[1:2] and word[1] in letters:
            after = words[place + 1] if place + 1 < len(words) else "-"
            if len(word) > len("-p"):
                places.add(place)
            elif isinstance(after, str) and not after.startswith("-"):
                places.add(place + 1)
    return frozenset(places)
