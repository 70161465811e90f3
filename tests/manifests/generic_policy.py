"""Makes the policy of the component `generic`, with resource names of your own, out of the one that is shipped.

    python -m tests.manifests.generic_policy [DOMAIN]      DOMAIN: what stands before the slash, else mpsd.io

Kustomize cannot change a line inside a ConfigMap's file, so the component holds a whole file. It is made here and
nowhere else, and a test holds it to what would be made now.
"""

import sys
from pathlib import Path

from mpsd.platform.limits_files import shipped_folder

TARGET = Path(__file__).parents[2] / "manifests" / "components" / "generic" / "policy.yaml"

_SHIPPED = "aliyun.com/"


def generic_policy(domain: str = "mpsd.io") -> str:
    text = (shipped_folder() / "policy.yaml").read_text()
    made = "Made by `python -m tests.manifests.generic_policy`; change it there."
    head = f"# limits/policy.yaml with the names of {domain}. {made}\n"
    return head + text.replace(_SHIPPED, f"{domain}/")


if __name__ == "__main__":
    TARGET.write_text(generic_policy(*sys.argv[1:2]))
