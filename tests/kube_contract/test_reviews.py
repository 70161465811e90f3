"""Whose token it is, and what its owner may get."""

from typing import Any

from mpsd.platform.kube import Kube, Object, Resource
from mpsd.platform.rules.readers import access_review, is_allowed, reviewed_user, token_review
from tests.kube_contract.conftest import World, eventually

ACCOUNTS = Resource("v1", "serviceaccounts")
TOKENS = Resource("authentication.k8s.io/v1", "tokenreviews")
ACCESS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
ROLES, BINDINGS = (
    Resource("rbac.authorization.k8s.io/v1", f"clusterrole{end}") for end in ("s", "bindings")
)
REQUEST: Object = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "TokenRequest",
    "spec": {"expirationSeconds": 600},
}


async def token_of(kube: Kube, world: World, name: str) -> str:
    await kube.create(ACCOUNTS, {"metadata": {"name": name}}, world.namespace)
    answer = await kube.create(
        ACCOUNTS, REQUEST | {"metadata": {"name": name}}, world.namespace, "token"
    )
    return answer["status"]["token"]


async def may_get(kube: Kube, token: str, path: str) -> bool:
    user = reviewed_user(await kube.create(TOKENS, token_review(token)))
    assert user is not None
    return is_allowed(await kube.create(ACCESS, access_review(user, path)))


async def test_a_token_is_known_as_its_service_account(world: World, kube: Kube) -> None:
    token = await token_of(kube, world, "reader")
    user = reviewed_user(await kube.create(TOKENS, token_review(token)))
    assert user is not None
    assert user.name == f"system:serviceaccount:{world.namespace}:reader"
    assert {f"system:serviceaccounts:{world.namespace}", "system:authenticated"} <= set(user.groups)
    for unknown in (token + "x", "nothing", "ü"):
        assert reviewed_user(await kube.create(TOKENS, token_review(unknown))) is None


async def test_a_role_that_is_bound_gives_its_paths_and_no_others(world: World, kube: Kube) -> None:
    name = f"{world.namespace}-reader"
    role = {
        "metadata": {"name": name},
        "rules": [{"nonResourceURLs": ["/told", "/v9/*"], "verbs": ["get"]}],
    }
    binding: dict[str, Any] = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": world.namespace}],
    }
    token, other = await token_of(kube, world, "reader"), await token_of(kube, world, "other")
    assert not await may_get(kube, token, "/told")
    try:
        await kube.create(ROLES, role)
        await kube.create(BINDINGS, binding)
        await eventually(lambda: may_get(kube, token, "/told"), "the role counts, a moment later")
        assert await may_get(kube, token, "/v9/a/b")
        assert not await may_get(kube, token, "/told/more")
        assert not await may_get(kube, token, "/")
        assert not await may_get(kube, other, "/told")
    finally:
        await kube.delete(BINDINGS, name)
        await kube.delete(ROLES, name)
