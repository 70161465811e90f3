"""Makes the policy of the overlay `hostile-tenants` out of the one that is shipped.

    python -m tests.manifests.hostile_policy

Kustomize cannot change a line inside a ConfigMap's file, so the overlay holds a whole file. It is made here and
nowhere else, and a test holds it to what would be made now.
"""

import re
from pathlib import Path

from mpsd.platform.limits_files import shipped_folder

TARGET = Path(__file__).parents[2] / "manifests" / "components" / "hostile-tenants" / "policy.yaml"

_HEAD = """\
# limits/policy.yaml for tenants who try. Made by `python -m tests.manifests.hostile_policy`; change it there.
"""
# Key, value as shipped, value here, and why.
_CHANGES = (
    ("host_ipc", "require", '"off"', "drivers of 580 and later need none, and it shares memory with every neighbour"),
    ("host-pid", "warn", "enforce", "it shows the neighbours' processes"),
    ("host-root", "warn", "enforce", "root on the host can end its neighbours' programs"),
    ("host-ipc-unneeded", "warn", "enforce", "the same"),
    ("environment-secret", "warn", "enforce", "a Secret can hold what lifts a limit"),
    ("environment-unseen", "warn", "enforce", "so can a ConfigMap that is made afterwards"),
    ("unasked-privileged", "warn", "enforce", "daemons that need it belong in exempt namespaces"),
    ("unasked-host-path", "warn", "enforce", "the same"),
    ("allowed_host_paths", "null", "[/etc/localtime]", "a folder that tenants can write to may hold links to others"),
)


def hostile_policy() -> str:
    text = (shipped_folder() / "policy.yaml").read_text()
    for key, shipped, here, why in _CHANGES:
        text, changed = re.subn(
            rf"^( +{key}: ){shipped}\b( *#.*)?$", rf"\g<1>{here}   # {why}", text, flags=re.MULTILINE
        )
        if changed != 1:
            raise ValueError(f"limits/policy.yaml does not say {key}: {shipped} once, but {changed} times")
    return _HEAD + text


if __name__ == "__main__":
    TARGET.write_text(hostile_policy())
