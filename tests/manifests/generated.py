"""Files that are made from code: alerts, and the board of Grafana. `make generated` writes them."""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from mpsd.core.alert import groups
from mpsd.core.alerts import GROUPS
from mpsd.core.grafana_board import board

ROOT = Path(__file__).parents[2]
_MADE = "# Made by `make generated` from mpsd/core/alerts.py: change it there.\n"
_LABELS = {"app.kubernetes.io/name": "mpsd-prometheus", "app.kubernetes.io/part-of": "mpsd"}


def files() -> Mapping[Path, str]:
    """What each must hold."""
    shown = json.dumps(board(), indent=1, ensure_ascii=False) + "\n"
    component, docs = ROOT / "manifests" / "components" / "prometheus", ROOT / "docs" / "prometheus"
    return {
        component / "rules.yaml": _MADE + _yaml(_prometheus_rule()),
        component / "board.json": shown,
        docs / "rules.yaml": _MADE + _yaml(groups(GROUPS)),
        docs / "board.json": shown,
    }


def _prometheus_rule() -> dict[str, object]:
    metadata = {"name": "mpsd", "namespace": "mpsd-system", "labels": _LABELS}
    kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
    return kind | {"metadata": metadata, "spec": groups(GROUPS)}


def _yaml(thing: object) -> str:
    return yaml.safe_dump(thing, sort_keys=False, width=120, allow_unicode=True)


def main() -> None:
    for path, text in files().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
