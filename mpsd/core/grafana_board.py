"""The board of Grafana as the JSON that it imports.

One rule: what is shown is in `core.board_panels`; here is only how Grafana wants it said.
"""

from collections.abc import Iterator
from itertools import count

from mpsd.core import metrics_names as names
from mpsd.core.board_kinds import Form, Panel, Row, Show
from mpsd.core.board_panels import GPU, NODE, ROWS
from mpsd.core.promql import INSTANCE, in_window, series

_SCHEMA = 39  # of Grafana 10.4; later ones migrate it by themselves
_RATE_INTERVAL = "$__rate_interval"  # four scrapes, or a point of the graph where that is longer
_WIDTH, _HEIGHT, _LOW = 24, 8, 4
_LINES_ACROSS, _NUMBERS_ACROSS = 2, 6
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, object]


def board() -> Json:
    """For `Import` in Grafana, or the ConfigMap that its sidecar reads."""
    return {
        "uid": "mpsd",
        "title": "mpsd",
        "description": "GPUs that are shared through MPS: what is promised, granted and used, and who takes more.",
        "tags": ["gpu", "mps"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source_variable(), *_variables()]},
        "panels": list(_placed()),
    }


def query(text: str) -> str:
    """As Grafana is given it."""
    return in_window(text, _RATE_INTERVAL)


def _source_variable() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variables() -> Iterator[Json]:
    yield _variable(NODE, "Node", f"label_values({series(names.GPU)}, {INSTANCE})")
    yield _variable(GPU, "GPU", f"label_values({series(names.GPU, **{INSTANCE: f'${NODE}'})}, gpu)")


def _variable(name: str, label: str, asked: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": asked,
        "query": {"query": asked, "refId": name},
        "refresh": 2,  # whenever the time range changes
        "sort": 7,  # gpu2 before gpu10
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _placed() -> Iterator[Json]:
    ids, top = count(1), 0
    for row in ROWS:
        yield {
            "id": next(ids),
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            **_at(0, top, 24, 1),
        }
        top += 1
        for panel, place, below in _in_places(row, top):
            yield {"id": next(ids), **_panel(panel), **place}
            top = below


def _in_places(row: Row, top: int) -> Iterator[tuple[Panel, Json, int]]:
    """Each with where it is, and how far down the row goes so far."""
    left, below = 0, top
    for panel in row.panels:
        is_number = panel.form is Form.NUMBER
        width = _WIDTH // (_NUMBERS_ACROSS if is_number else _LINES_ACROSS)
        height = _LOW if is_number else _HEIGHT
        if left + width > _WIDTH:
            left, top = 0, below
        below = max(below, top + height)
        yield panel, _at(left, top, width, height), below
        left += width


def _at(left: int, top: int, width: int, height: int) -> Json:
    return {"gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.form.value,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query(one.text),
                "legendFormat": one.legend or "__auto",
                "instant": panel.form is Form.NUMBER,
                "range": panel.form is not Form.NUMBER,
            }
            for number, one in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _defaults(panel: Panel) -> Json:
    unit: Json = {"unit": panel.show.value, "min": 0}
    whole: Json = {"axisSoftMax": 1} if panel.show is Show.SHARE else {}
    match panel.form:
        case Form.NUMBER:
            return unit | {"color": {"mode": "fixed", "fixedColor": "text"}}
        case Form.STATES:
            named = {str(number): {"text": name, "index": number} for number, name in enumerate(panel.values)}
            return {"mappings": [{"type": "value", "options": named}], "color": {"mode": "continuous-BlPu"}}
        case Form.LINES if panel.bars:
            return unit | {"custom": {"drawStyle": "bars", "fillOpacity": 60, "stacking": {"mode": "normal"}}}
        case Form.LINES:
            return unit | {"custom": {"drawStyle": "line", "fillOpacity": 8, "showPoints": "never", **whole}}


def _options(panel: Panel) -> Json:
    match panel.form:
        case Form.NUMBER:
            return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
        case Form.STATES:
            return {"showValue": "auto", "legend": {"showLegend": False}}
        case Form.LINES:
            legend = {"showLegend": True, "displayMode": "list", "placement": "bottom"}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
