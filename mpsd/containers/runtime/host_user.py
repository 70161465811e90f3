"""Whether a bundle's program may be root on the machine itself, as it is in most containers.

One rule: where nobody can tell which user it is here, it may be root. The format: runtime-spec, config-linux.md.
"""

from mpsd.containers.runtime.bundle_file import CONFIG
from mpsd.containers.runtime.fields import inner, member, rows, table
from mpsd.containers.runtime.refused import Refused, shown

_MAPPING = ("containerID", "hostID", "size")


def may_be_root(config: dict[str, object]) -> bool:
    """Refused where the bundle does not say it in the format."""
    user = inner(inner(config, "process", CONFIG), "user", CONFIG)
    uid = _number(user, "uid", f"{CONFIG}: process: user")
    linux = inner(config, "linux", CONFIG)
    kinds = [table(row, f"{CONFIG}: a namespace").get("type") for row in rows(linux, "namespaces", CONFIG)]
    if "user" not in kinds:
        return uid == 0
    mappings = [table(row, f"{CONFIG}: uidMappings") for row in rows(linux, "uidMappings", CONFIG)]
    return not mappings or any(_holds_root(mapping) for mapping in mappings)


def _holds_root(mapping: dict[str, object]) -> bool:
    """Whether root of this machine is somebody in the container, who can be become there."""
    _inside, here, size = (_number(mapping, name, f"{CONFIG}: uidMappings") for name in _MAPPING)
    return here == 0 and size > 0


def _number(holder: dict[str, object], name: str, where: str) -> int:
    value = member(holder, name, where)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"{where}: {name} is {shown(str(value))}; it must be a whole number from 0 on")
    return value
