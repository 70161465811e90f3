"""Where GPUs are served by claims, a pod that requests memory of one gets a claim, of a template
that is there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpsd.admission.review_api import CONFIG_MAPS, USED_AT, ClaimTemplates, Lookups, WebhookMetrics
from mpsd.admission.rules.requests import template_wanted
from mpsd.admission.rules.review import AdmissionContext, needed_to_mutate, read_review
from mpsd.model.names import NAME_LABEL, WEBHOOK
from mpsd.model.pod import CLAIM, CLAIM_TEMPLATE, ClaimName
from mpsd.model.policy import Oversubscription
from mpsd.platform.kube import (
    CLAIM_TEMPLATES,
    Forbidden,
    Kube,
    KubeError,
    Object,
    PatchKind,
    Rejected,
    Resource,
)
from mpsd.platform.rules.kubernetes_objects import read_object
from tests.admission.cases import asking
from tests.admission.reviews import ALLOWED, mutated, patched, review_of, rules_refusing, validated
from tests.model.manifests import (
    COUNT,
    FACTS,
    MEMORY,
    PERCENT,
    POLICY,
    Fields,
    container,
    inside,
    pod,
    with_admission,
)
from tests.simulated_api import simulated_api
from tests.world.asking import answers

CLAIMING = with_admission(claims_for_requests=True)
DAY_S = 86_400.0


def devices(thing: Fields, policy: Any = CLAIMING) -> Any:
    found = read_object(thing).pod
    assert found
    wanted = template_wanted(found, policy, FACTS, {})
    return wanted and wanted.spec["devices"]


def test_a_pod_gets_a_claim_for_what_it_requests_and_requests_it_no_longer() -> None:
    limits = {MEMORY: 7, PERCENT: 30, "cpu": 1}
    thing = pod(container(limits=limits), container("other"))
    answer = mutated(review_of(thing), CLAIMING)
    assert answer.template
    after = patched(thing, answer)
    main, other = after["spec"]["containers"]
    assert main["resources"] == {"limits": {"cpu": 1}, "claims": [{"name": "mpsd-gpu"}]}
    assert "resources" not in other
    entry = {"name": "mpsd-gpu", "resourceClaimTemplateName": answer.template.name}
    assert after["spec"]["resourceClaims"] == [entry]
    assert MEMORY in answer.warnings[0]
    seen = AdmissionContext(
        claims={ClaimName(CLAIM_TEMPLATE, answer.template.name): ("mps.mpsd.io",)}
    )
    assert validated(review_of(after), CLAIMING, seen) == ALLOWED
    assert mutated(review_of(after), CLAIMING, seen) == ALLOWED, "and is changed once"


def test_requests_go_with_the_limits_and_other_claims_stay() -> None:
    own = {"limits": {MEMORY: 7}, "requests": {MEMORY: 7}, "claims": [{"name": "net"}]}
    thing = pod(
        container(resources=own), resourceClaims=[{"name": "net", "resourceClaimName": "net"}]
    )
    after = patched(thing, mutated(review_of(thing), CLAIMING))
    claims = [{"name": "net"}, {"name": "mpsd-gpu"}]
    assert after["spec"]["containers"][0]["resources"] == {
        "limits": {},
        "requests": {},
        "claims": claims,
    }
    assert [one["name"] for one in after["spec"]["resourceClaims"]] == ["net", "mpsd-gpu"]


def test_the_claim_is_for_the_same_memory_and_threads() -> None:
    amounts = {"memory": "7Gi", "threads": "30"}
    (request,) = devices(pod(container(limits={MEMORY: 7, PERCENT: 30})))["requests"]
    assert request["exactly"]["capacity"] == {"requests": amounts}
    (request,) = devices(pod(container(limits={MEMORY: "7"})))["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"memory": "7Gi"}}
    mib = replace(CLAIMING, resources=replace(CLAIMING.resources, memory_unit_mib=512))
    (request,) = devices(asking(), mib)["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"memory": "3584Mi"}}


def test_several_gpus_are_as_many_devices_of_one_domain() -> None:
    thing = pod(container(limits={MEMORY: 14}), labels={COUNT: "2"})
    found = devices(thing, replace(CLAIMING, domains=[[0, 1]]))
    exactly = found["requests"][0]["exactly"]
    assert (exactly["count"], exactly["capacity"]["requests"]["memory"]) == (2, "7Gi")
    kinds = [sorted(one.keys() - {"requests"}) for one in found["constraints"]]
    assert kinds == [["matchAttribute"], ["distinctAttribute"]]


@pytest.mark.parametrize(
    ("thing", "code"),
    [
        (
            pod(container("a", limits={MEMORY: 3}), container("b", limits={MEMORY: 4})),
            "claim-of-several",
        ),
        (pod(container(limits={MEMORY: 14}), labels={COUNT: "2"}), "claim-without-domain"),
        (
            asking(resourceClaims=[{"name": "mpsd-gpu", "resourceClaimName": "x"}]),
            "claim-name-taken",
        ),
        (pod(container(limits={MEMORY: 7000})), "memory-over-card"),
    ],
)
def test_what_no_claim_can_hold_is_refused_and_left_as_it_is(thing: Fields, code: str) -> None:
    answer = mutated(review_of(thing), CLAIMING)
    assert answer.template is None
    assert "resourceClaims" not in str(answer.patch)
    for one in (thing, inside("batch/v1", "Job", thing)):
        refused = validated(review_of(one), CLAIMING)
        assert "request-impossible" in rules_refusing(refused)
    if code.startswith("claim"):
        assert validated(review_of(thing)).verdicts != refused.verdicts, "of claims alone"


def test_a_pod_that_is_refused_for_what_may_be_promised_gets_no_claim() -> None:
    half = replace(CLAIMING, oversubscription=Oversubscription(100, 50))
    thing = pod(container(limits={MEMORY: 7, PERCENT: 60}))
    assert rules_refusing(validated(review_of(thing), half)) == ["request-impossible"]
    assert mutated(review_of(thing), half).template is None


def test_a_pod_with_a_claim_of_its_own_gets_no_second_one_and_is_refused() -> None:
    own = {"limits": {MEMORY: 7}, "claims": [{"name": "gpu"}]}
    thing = pod(
        container(resources=own), resourceClaims=[{"name": "gpu", "resourceClaimName": "share"}]
    )
    name = ClaimName(CLAIM, "share")
    seen = AdmissionContext(claims={name: ("mps.mpsd.io",)})
    assert needed_to_mutate(read_review(review_of(thing)), CLAIMING, FACTS).claims == (name,)
    assert mutated(review_of(thing), replace(CLAIMING, pod_ends=False), seen) == ALLOWED
    answer = validated(review_of(thing), CLAIMING, seen)
    assert rules_refusing(answer) == ["request-impossible"]
    assert f"spec is gpu and {MEMORY}" in answer.message
    of_another = AdmissionContext(claims={name: ("nic.example.com",)})
    assert mutated(review_of(thing), CLAIMING, of_another).template


LABEL = "mpsd.io/claims"
TRUE = {"key": LABEL, "operator": "In", "values": ["true"]}


def required(*terms: object) -> Fields:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    }


@pytest.mark.parametrize(
    ("spec", "gets"),
    [
        ({}, False),
        ({"nodeSelector": {LABEL: "true"}}, True),
        ({"nodeSelector": {LABEL: "false"}}, False),
        (required([TRUE]), True),
        (required([TRUE, {"key": "zone", "operator": "Exists"}]), True),
        (required([TRUE], [{"key": "zone", "operator": "Exists"}]), False),
        (required([TRUE | {"operator": "NotIn"}]), False),
        (required([TRUE | {"values": ["true", "false"]}]), False),
        (required(), False),
    ],
)
def test_where_nodes_are_labelled_only_pods_that_select_them_get_a_claim(
    spec: Fields, gets: bool
) -> None:
    by_label = replace(CLAIMING, claim_nodes="labelled")
    thing = asking(**spec)
    assert bool(mutated(review_of(thing), by_label).template) is gets
    assert mutated(review_of(thing), CLAIMING).template
    two = pod(container("a", limits={MEMORY: 3}), container("b", limits={MEMORY: 4}), **spec)
    assert validated(review_of(two), by_label).allowed is not gets, (
        "what no claim can hold the device plugin can"
    )


@pytest.mark.parametrize("enforce", ["none", None])
def test_pods_are_left_alone_where_the_policy_or_the_namespace_says_so(enforce: str | None) -> None:
    policy, labels = (CLAIMING, {"mpsd.io/enforce": enforce}) if enforce else (POLICY, {})
    review = review_of(asking())
    answer = mutated(review, replace(policy, pod_ends=False), AdmissionContext(labels))
    assert answer == ALLOWED


def test_a_container_that_names_the_claim_before_it_is_there_is_refused() -> None:
    other = container("other", resources={"claims": [{"name": "mpsd-gpu"}]})
    thing = pod(container(limits={MEMORY: 7}), other)
    assert mutated(review_of(thing), CLAIMING).template is None
    assert "mpsd-gpu" in validated(review_of(thing), CLAIMING).message


@pytest.mark.parametrize("name", ["a" * 63, "a\n" + "b" * 5000])
def test_the_warning_of_a_claim_has_lines_that_kubernetes_shows(name: str) -> None:
    warnings = mutated(review_of(pod(container(name, limits={MEMORY: 7}))), CLAIMING).warnings
    assert max(map(len, warnings)) < 120
    assert all(line.isprintable() for line in warnings)


def test_a_dry_run_does_not_ask_for_the_template_that_it_does_not_make() -> None:
    thing = asking()
    after = patched(thing, mutated(review_of(thing), CLAIMING))
    root = {**after, "spec": {**after["spec"], "hostPID": True}}
    assert "cannot be read" in str(validated(review_of(root), CLAIMING).warnings)
    assert "cannot be read" not in str(validated(review_of(root, dryRun=True), CLAIMING).warnings)


def test_templates_of_pods_and_updates_are_left_alone() -> None:
    thing = asking()
    assert mutated(review_of(inside("batch/v1", "Job", thing)), CLAIMING) == ALLOWED
    assert mutated(review_of(thing, old=pod(container(limits={MEMORY: 6}))), CLAIMING) == ALLOWED
    debugged = asking(ephemeralContainers=[container("debugger")])
    review = review_of(debugged, old=thing, subResource="ephemeralcontainers")
    assert mutated(review, CLAIMING).template is None


# -- the ConfigMaps


def test_a_config_map_beyond_the_32_that_are_looked_into_is_not_known(tmp_path: Path) -> None:
    names = [f"many-{number}" for number in range(33)]

    async def ask(kube: Kube) -> dict[str, frozenset[str]]:
        for name in names:
            thing = {"metadata": {"name": name}, "data": {"A": ""}}
            await kube.create(CONFIG_MAPS, thing, "default")
        return await Lookups(kube, WebhookMetrics()).config_map_keys("default", names)

    with simulated_api() as api:
        found = answers(api.kubeconfig(tmp_path), ask)
    assert found == dict.fromkeys(names[:32], frozenset({"A"}))


# -- the templates


def with_api(folder: Path, act: Callable[[Kube, ClaimTemplates], Awaitable[None]]) -> None:
    with simulated_api() as api:
        answers(api.kubeconfig(folder), lambda kube: act(kube, ClaimTemplates(kube)))


def wanted(gib: int = 7) -> Any:
    found = read_object(pod(container(limits={MEMORY: gib}))).pod
    assert found
    return template_wanted(found, CLAIMING, FACTS, {})


async def names(kube: Kube) -> list[str]:
    return [thing["metadata"]["name"] for thing in await kube.list(CLAIM_TEMPLATES)]


async def used_at(kube: Kube) -> float:
    (thing,) = await kube.list(CLAIM_TEMPLATES)
    return float(thing["metadata"]["annotations"][USED_AT])


def test_pods_of_the_same_request_share_a_template_which_many_replicas_make_once(
    tmp_path: Path,
) -> None:
    async def act(kube: Kube, templates: ClaimTemplates) -> None:
        assert (
            await asyncio.gather(
                *(templates.keep("default", wanted(), 1000.0) for _turn in range(8))
            )
            == [""] * 8
        )
        assert await names(kube) == [wanted().name]
        assert await templates.keep("default", wanted(4), 1000.0) == ""
        assert len(await names(kube)) == 2

    with_api(tmp_path, act)


def test_a_template_is_removed_a_day_after_the_last_pod_and_not_before(tmp_path: Path) -> None:
    async def act(kube: Kube, templates: ClaimTemplates) -> None:
        await templates.keep("default", wanted(), 1000.0)
        await templates.keep("default", wanted(), 2000.0)
        assert await used_at(kube) == 1000.0, "pods that come at about that time write nothing"
        await templates.keep("default", wanted(), DAY_S)
        assert await used_at(kube) == DAY_S
        await templates.sweep(DAY_S + 1001.0)
        assert await names(kube) == [wanted().name]
        await templates.sweep(2 * DAY_S)
        assert await names(kube) == []

    with_api(tmp_path, act)


def test_a_template_that_is_used_while_it_is_swept_stays(tmp_path: Path) -> None:
    async def act(kube: Kube, templates: ClaimTemplates) -> None:
        await templates.keep("default", wanted(), 0.0)
        each = kube.each

        async def late(*args: Any, **kwargs: Any) -> AsyncIterator[Object]:
            found = [one async for one in each(*args, **kwargs)]
            assert await templates.keep("default", wanted(), DAY_S) == ""
            for one in found:
                yield one

        kube.each = late  # type: ignore[method-assign]
        await templates.sweep(DAY_S)
        kube.each = each  # type: ignore[method-assign]
        assert await names(kube) == [wanted().name]

    with_api(tmp_path, act)


def test_templates_of_others_are_neither_used_nor_removed(tmp_path: Path) -> None:
    async def act(kube: Kube, templates: ClaimTemplates) -> None:
        typed = {"apiVersion": CLAIM_TEMPLATES.api, "kind": CLAIM_TEMPLATE}
        other = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
        thing = {**typed, "metadata": {"name": wanted().name}, "spec": {"spec": {"devices": other}}}
        await kube.create(CLAIM_TEMPLATES, thing, "default")
        assert "other contents" in await templates.keep("default", wanted(), 1000.0)
        await templates.sweep(10 * DAY_S)
        assert await names(kube) == [wanted().name]

    with_api(tmp_path, act)


@pytest.mark.parametrize("error", [Forbidden, Rejected])
def test_a_template_that_may_not_be_removed_keeps_no_other(
    tmp_path: Path, error: type[KubeError]
) -> None:
    """Any tenant may write the label, and a policy keeps the webhook to names of its own."""

    async def act(kube: Kube, templates: ClaimTemplates) -> None:
        labels = {NAME_LABEL: WEBHOOK}
        typed = {
            "apiVersion": CLAIM_TEMPLATES.api,
            "kind": CLAIM_TEMPLATE,
            "spec": {"spec": wanted().spec},
        }
        await kube.create(
            CLAIM_TEMPLATES, {**typed, "metadata": {"name": "a", "labels": labels}}, "default"
        )
        await templates.keep("default", wanted(), 0.0)
        deleted = kube.delete

        async def refusing(
            resource: Resource, name: str, namespace: str = "", **meant: str
        ) -> Object:
            if name == "a":
                raise error("own-templates")
            return await deleted(resource, name, namespace, **meant)

        kube.delete = refusing  # type: ignore[method-assign]
        await templates.sweep(2 * DAY_S)
        assert await names(kube) == ["a"]

    with_api(tmp_path, act)


@pytest.mark.parametrize("said", ["nan", "inf", "-1", "1e400", "soon"])
def test_a_time_that_is_none_keeps_no_template_for_ever(tmp_path: Path, said: str) -> None:
    async def act(kube: Kube, templates: ClaimTemplates) -> None:
        await templates.keep("default", wanted(), 0.0)
        change = {"metadata": {"annotations": {USED_AT: said}}}
        await kube.patch(CLAIM_TEMPLATES, wanted().name, change, PatchKind.MERGE, "default")
        await templates.sweep(2 * DAY_S)
        assert await names(kube) == []

    with_api(tmp_path, act)


def test_without_an_api_server_there_is_no_template() -> None:
    assert asyncio.run(ClaimTemplates(None).keep("default", wanted(), 0.0)) != ""
