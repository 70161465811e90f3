"""The page in a real Chromium: what an operator sees, how soon, and what it must never do."""

import time
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from mpsd.status.page.rules.view import PodsHeard
from tests.model.worlds import GPUS
from tests.page.browser import DESKTOP, PHONE, Browser, axe
from tests.page.site import PlayedSite, played
from tests.page.worlds import cluster, hostile, troubled
from tests.page_worlds import GIB, crowd, granted, node, page_of
from tests.status.pod_worlds import held_claim, pod

DOCUMENT_BYTES = 32 * 1024  # how soon it is there, `make bench` says, in blank pages


@pytest.fixture
def night() -> Iterator[PlayedSite]:
    with played(troubled(time.time())) as site:
        yield site


def shown(window: Browser, site: PlayedSite, gpus: int) -> None:
    window.open(site.url)
    window.until(
        f"return document.querySelectorAll('.gpu').length === {gpus}", f"{gpus} GPUs are shown"
    )


def test_eight_gpus_with_forty_clients_each_are_drawn_from_one_document_and_one_view(
    window: Browser,
) -> None:
    with played(page_of(crowd(8, 40))) as site:
        window.open(site.url)
        window.until(
            "return document.querySelectorAll('.bar:not(.threads) .slice').length === 320",
            "320 slices",
        )
        assert [urlsplit(url).path for url in window.asked()][:2] == ["/", "/v1/page"]
        assert window.script("return performance.getEntriesByName('first view').length") == 1
        assert (
            window.script("return performance.getEntriesByType('navigation')[0].transferSize")
            < DOCUMENT_BYTES
        )
        assert window.complaints() == []


def test_the_worst_is_said_first_also_to_who_does_not_see_it_and_no_other_host_is_asked(
    window: Browser, night: PlayedSite
) -> None:
    shown(window, night, 4)
    asked = [url for url in window.asked() if not url.startswith("data:")]
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(night.url).netloc}
    assert {urlsplit(url).path for url in asked} == {"/", "/v1/page"}
    assert window.complaints() == []
    assert "1 thing is wrong" in window.text("#verdict-title")
    assert window.script("return document.title").startswith("✖ 1")
    assert window.text("#notes > li:first-child").count("in fault") == 1
    assert window.text(".gpu:first-child h3").startswith("gpu2")
    assert "a program had a GPU fault" in window.text(".gpu:first-child")
    waits = "pod research/finetune-qwen-0 waits on gpu2 of gpu-a1: gpu2 is in fault"
    assert waits in window.text("#waiting")
    words = window.script(
        "return [...document.querySelectorAll('[role=img]')].map((one) =>"
        " one.getAttribute('aria-label'))"
    )
    assert "gpu0: 20 of 23 GiB granted, 15.1 GiB used, 3 holders" in words
    assert "gpu0: 100 of 100 % of the threads reserved" in words
    assert all(words)
    assert window.script("return document.documentElement.lang") == "en"
    lives = window.script(
        "return [...document.querySelectorAll('[role=status]')].map((one) => one.id)"
    )
    assert lives == ["found", "said"]
    window.script("document.querySelector('[data-language=zh]').click()")
    window.until(
        "return document.getElementById('verdict-title').textContent === '1 项故障'",
        "it is in Chinese",
    )
    assert "故障" in window.text(".gpu .chip:not([hidden])")
    assert "a program had a GPU fault" in window.text(".gpu .why")
    shown(window, night, 4)
    assert window.script("return document.documentElement.lang") == "zh", "it stays chosen"


def test_a_data_scientist_finds_a_job_by_typing(window: Browser, night: PlayedSite) -> None:
    shown(window, night, 4)
    window.script("document.body.focus()")
    window.keys("/")
    window.keys("finetune")
    window.until("return document.querySelectorAll('.gpu').length === 1", "one GPU has it")
    assert window.text(".gpu h3").startswith("gpu2")
    assert window.text("tr.hit th").startswith("research/finetune-llama-0")
    assert window.script("return document.querySelectorAll('#waiting > li').length") == 1
    assert "finetune-qwen-0" in window.text("#waiting")
    assert "2 matches" in window.text("#found")
    window.select_all()
    window.keys("no-such-job")
    window.until(
        "return document.getElementById('found').textContent === 'Nothing matches'",
        "nothing is found",
    )
    window.select_all()
    window.keys(Keys.DELETE)
    window.until("return document.querySelectorAll('.gpu').length === 4", "all GPUs are back")


def test_a_node_beside_a_kubelet_says_which_of_its_pods_wait_since_when_and_where_the_others_are(
    window: Browser, night: PlayedSite
) -> None:
    shown(window, night, 4)
    assert window.text("#waiting-title") == "Waiting for a GPU (2)"
    assert "not started" in window.text("#waiting > li:last-child .chip")
    assert window.text("#waiting > li:last-child time").startswith("for ")
    assert "ImagePullBackOff" in window.text("#waiting > li:first-child")
    assert "scheduler's page" in window.text("#waiting-elsewhere")
    view = troubled(time.time())
    never = replace(view.head, pods=PodsHeard("the API server does not answer"))
    night.show(replace(view, head=never, waiting=()))
    window.until(
        "return document.querySelector('#waiting-title').textContent.endsWith('(?)')",
        "nobody knows how many",
    )
    assert "? waiting" in window.text("#verdict-figures")
    assert "is not known: the API server does not answer" in window.text("#waiting-away")
    window.script("document.querySelector('[data-language=zh]').click()")
    assert "调度器" in window.text("#waiting-elsewhere")
    night.show(replace(view, head=replace(view.head, pods=PodsHeard("it is away", 0.0))))
    window.until(
        "return document.querySelectorAll('#waiting > li').length === 2",
        "those that were heard of last stay",
    )
    assert "收不到本节点 Pod 的消息" in window.text("#waiting-away")
    night.show(page_of(node(GPUS, [])))
    window.until(
        "return document.getElementById('waiting-part').hidden",
        "where no kubelet is nothing is said of pods",
    )


def test_a_refusal_is_shown_with_its_reason_and_the_page_comes_alive_once_it_is_over(
    window: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpsd.status.page.server._FIRST_VIEW_S", 0.2)
    with played(None) as site:
        window.open(site.url)
        refused = "return document.getElementById('link-text').textContent"
        window.until(f"{refused}.includes('503 nothing is known yet')", "it is refused")
        site.show(troubled(time.time()))
        window.until("return document.body.className === 'live'", "it is live")
        assert window.text("#waiting-title") == "Waiting for a GPU (2)"


def test_what_is_not_known_is_a_question_mark_and_never_zero(window: Browser) -> None:
    seen = node(GPUS, [granted(GPUS[0], "train", GIB)])
    unseen = {gpu.uuid: "NVML: no answer" for gpu in seen.gpus}
    blind = replace(seen, clients=(), unseen=unseen)
    with played(page_of(blind)) as site:
        shown(window, site, 2)
        assert "? GiB used" in window.text("#verdict-figures")
        assert "? / 1 GiB" in window.text("tbody td")
        assert "NVML: no answer" in window.text("#notes")
        assert window.script("return document.querySelectorAll('.slice.unknown').length") == 1
        site.show(page_of(replace(blind, grants_known=False)))
        window.until(
            "return document.body.innerText.includes('who has a share is not known')",
            "nobody knows who",
        )
        assert "0 of" not in window.text(".figures")


def test_a_change_is_drawn_where_it_is_and_what_is_open_stays_open(window: Browser) -> None:
    pods = [granted(GPUS[0], f"pod{number}", GIB) for number in range(12)]
    with played(page_of(node(GPUS, pods))) as site:
        shown(window, site, 2)
        window.script("document.querySelector('.gpu summary').focus()")
        window.keys(Keys.ENTER)
        window.until(
            "return document.querySelectorAll('.gpu tbody tr').length === 12", "its table is open"
        )
        site.show(page_of(node(GPUS, [*pods, granted(GPUS[0], "late", GIB)])))
        window.until(
            "return document.querySelectorAll('.gpu tbody tr').length === 13",
            "the new pod is in it",
        )
        assert window.script("return document.activeElement.tagName") == "SUMMARY"


def test_names_that_tenants_have_chosen_are_text(window: Browser) -> None:
    with played(page_of(hostile(), name="<i>gpu</i>")) as site:
        shown(window, site, 2)
        window.until("return document.querySelector('tbody th') !== null", "the tables are open")
        assert "<b>ns</b>/<img src=x onerror=" in window.text("#gpus")
        assert "</script><script>" in window.text("#notes")
        assert "<i>gpu</i>" in window.text("h1")
        assert (
            window.script(
                "return document.querySelectorAll('main img, main script, main b, h1 i').length"
            )
            == 0
        )
        assert "caught" not in window.script("return document.title").replace(
            "document.title='caught'", ""
        )
        assert "\u202e" not in window.text()
        assert window.complaints() == []
        assert [url for url in window.asked() if url.endswith("/x")] == []


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_serious(
    window: Browser, night: PlayedSite, size: tuple[int, int], scheme: str, language: str
) -> None:
    window.size(*size)
    window.colours(scheme)
    shown(window, night, 4)
    window.script(f"document.querySelector('[data-language={language}]').click()")
    assert window.script("return document.documentElement.lang") == language
    assert window.script("return document.documentElement.scrollWidth") <= size[0]
    assert barriers(window) == []


def barriers(window: Browser) -> list[object]:
    return [
        (one["id"], one["impact"], [at["html"] for at in one["nodes"]][:3])
        for one in window.violations(axe())
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_with_letters_of_twice_the_size_nothing_is_cut_on_a_phone(
    window: Browser, night: PlayedSite, language: str
) -> None:
    window.size(*PHONE)
    shown(window, night, 4)
    window.script(f"document.querySelector('[data-language={language}]').click()")
    wide = "return document.documentElement.scrollWidth"
    inside = (
        "return [...document.querySelectorAll('.gpu details')].every((one) => one.scrollWidth <="
        " one.clientWidth)"
    )
    assert window.script(inside), "as it is, tables have their room"
    window.script("document.documentElement.style.fontSize = '200%'")
    assert window.script(wide) <= PHONE[0]
    assert not window.script(inside), "a table that needs more room is moved within its card"


def test_everything_that_can_be_done_is_reached_by_the_keyboard_and_seen_there(
    window: Browser, night: PlayedSite
) -> None:
    shown(window, night, 4)
    window.script("document.body.focus()")
    wanted = window.script(
        "const all = [...document.querySelectorAll('a, button, input, summary')];"
        "return all.filter((one) => one.checkVisibility()).length"
    )
    reached = []
    for _tab in range(wanted):
        window.keys(Keys.TAB)
        reached.append(
            window.script(
                "return [...document.querySelectorAll('*')].indexOf(document.activeElement)"
            )
        )
        outlined = (
            "const style = getComputedStyle(document.activeElement); return style.outlineStyle +"
            " style.outlineWidth"
        )
        assert window.script(outlined) == "solid3px", reached[-1]
    assert len(set(reached)) == wanted
    assert reached == sorted(reached)
    window.script("document.querySelector('.skip').focus()")
    window.keys(Keys.ENTER)
    assert window.script("return document.activeElement.id") == "main"


def test_a_claim_is_named_beside_its_holder_and_found_by_any_of_its_pods(window: Browser) -> None:
    shared = held_claim("share", pod("first"), pod("second")).grant
    with played(page_of(node(GPUS, [shared]))) as site:
        shown(window, site, 2)
        assert "claim default/share, shared with 1 more pod" in window.text("#gpus")
        window.script("document.body.focus()")
        window.keys("/")
        window.keys("second")
        window.until("return document.querySelectorAll('tr.hit').length === 1", "its row is marked")


@pytest.mark.parametrize(
    ("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desk", "phone"]
)
def test_a_clusters_page_has_the_worst_node_first_and_takes_no_silent_node_for_well(
    window: Browser, size: tuple[int, int], scheme: str
) -> None:
    window.size(*size)
    window.colours(scheme)
    with played(cluster(time.time())) as site:
        window.open(site.url)
        window.until(
            "return document.querySelectorAll('.node').length === 8", "eight nodes are shown"
        )
        assert "2 things are wrong" in window.text("#verdict-title")
        assert "27 of 32 GPUs serve" in window.text("#verdict-figures")
        names = window.script(
            "return [...document.querySelectorAll('.node h3')].map((one) => one.textContent)"
        )
        assert names == ["gpu-a3", "gpu-a6", *(f"gpu-a{number}" for number in (1, 2, 4, 5, 7, 8))]
        opened = window.script("return document.querySelectorAll('.node > details[open]').length")
        assert opened == 2
        assert "silent" in window.text(".node:nth-child(2) .chip")
        assert window.script("return document.documentElement.scrollWidth") <= size[0]
        assert barriers(window) == []
        assert window.complaints() == []


def test_a_pod_that_broke_its_limit_is_marked_and_what_it_did_happened_recently(
    window: Browser,
) -> None:
    with played(cluster(time.time())) as site:
        window.open(site.url)
        window.keys("/sweep-0-1")
        window.until("return document.querySelectorAll('.node').length === 1", "its node is shown")
        marked = "return (document.querySelector('tr.hit')?.textContent ?? '')"
        window.until(f"{marked}.includes('3 violations')", "its row is marked")
        recent = window.text("#recent > li:first-child")
        assert "Memory over grant" in recent
        assert "gpu-a1 research/sweep-0-1" in recent
        assert "to be ended" in recent
        window.select_all()
        window.keys("llm-0-1")
        window.until(f"{marked}.includes('llm-0-1')", "the row of its neighbour")
        assert "violation" not in window.script(marked)
        assert window.complaints() == []
