"""A cluster's page in a real Chromium says which pod broke its limit, in both languages."""

import time

from msgspec.structs import replace as changed

from mpsd.model.node_report import (
    NO_VIOLATIONS,
    GrantViolations,
    ViolationCount,
    ViolationReport,
    ViolationsReport,
)
from mpsd.model.times import utc
from mpsd.status.page.rules.pages import cluster_page, node_parts
from mpsd.status.page.rules.view import PageHead, PageScope
from tests.page.browser import Browser
from tests.page.site import played
from tests.status.cluster_worlds import cluster_node, held

ROW = "tbody tr:nth-child({})"


def test_a_pod_that_broke_its_limit_is_marked_and_what_it_did_happened_recently(
    window: Browser,
) -> None:
    now = time.time()
    last = ViolationReport(
        at=utc(now - 60), kind="memory_over_grant", action="kill", pod="default/train"
    )
    own = GrantViolations((ViolationCount(kind="memory_over_grant", count=3),), last)
    pods = (
        changed(held("train", 7), violations=own),
        changed(held("well", 3), violations=NO_VIOLATIONS),
    )
    node = changed(
        cluster_node(gib=(23,), held=pods),
        reported_at=now,
        violations=ViolationsReport(pods=1, counts=own.counts, last=(last,)),
    )
    with played(
        cluster_page(PageHead(PageScope.CLUSTER, "cluster", "1", now), [node_parts(node, now)], ())
    ) as site:
        window.open(site.url)
        window.until("return document.querySelectorAll('.gpu').length === 1", "the GPU is shown")
        window.script(
            "document.querySelectorAll('details:not([open]) > summary').forEach((one) =>"
            " one.click())"
        )
        window.until(
            "return document.querySelectorAll('.gpu tbody tr').length === 2",
            "the table of its pods",
        )
        assert "3 violations" in window.text(f".gpu {ROW.format(1)}")
        assert "violation" not in window.text(f".gpu {ROW.format(2)}")
        recent = window.text("#recent > li:first-child")
        assert "Memory over grant" in recent
        assert "node1 default/train" in recent
        assert "to be ended" in recent
        window.script("document.querySelector('[data-language=zh]').click()")
        window.until(
            f"return document.querySelector('.gpu {ROW.format(1)}')"
            ".textContent.includes('违规 3 次')",
            "in Chinese",
        )
        assert "显存超额" in window.text("#recent > li:first-child")
        assert window.complaints() == []
