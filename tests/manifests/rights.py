"""Every right that the manifests give, for the table in docs/security.md, where people say why."""

from collections.abc import Iterator

from tests.manifests.rendering import PLAIN, VALUES, Object, of_kind


def rights_table() -> list[tuple[str, str]]:
    places: dict[str, list[str]] = {}
    everywhere = [PLAIN, *VALUES]
    for place in everywhere:
        for right in granted(place):
            places.setdefault(right, []).append(place)
    return [(right, _where(found, everywhere)) for right, found in sorted(places.items())]


def _where(found: list[str], everywhere: list[str]) -> str:
    if found == everywhere:
        return "all"
    missing = [place for place in everywhere if place not in found]
    named = found if PLAIN in missing else missing
    return ("" if named is found else "all but ") + ", ".join(f"`{place}`" for place in named)


def granted(place: str) -> Iterator[str]:
    """Such as "`mpsd-agent`: get `nodes`". A role that nobody is bound to stands for itself."""
    bindings = [*of_kind(place, "ClusterRoleBinding"), *of_kind(place, "RoleBinding")]
    roles = {
        (role["kind"], role["metadata"]["name"]): role
        for kind in ("ClusterRole", "Role")
        for role in of_kind(place, kind)
    }
    bound = {(one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings}
    for binding in bindings:
        ref, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
        for subject in binding["subjects"]:
            for right in _of(
                roles.get((ref["kind"], ref["name"])), f"{ref['kind']} `{ref['name']}`"
            ):
                yield f"`{subject['name']}`: {right}" + (f" in `{namespace}`" if namespace else "")
    for key in roles.keys() - bound:
        for right in _of(roles[key], ""):
            yield f"whoever is bound to `{key[1]}`: {right}"


def _of(role: Object | None, name: str) -> Iterator[str]:
    """role: None for one that Kubernetes has itself."""
    if role is None:
        yield name
        return
    for rule in role["rules"]:
        things = [
            f"{one}.{group}".rstrip(".")
            for group in rule.get("apiGroups", ())
            for one in rule["resources"]
        ]
        what = ", ".join(f"`{one}`" for one in (*things, *rule.get("nonResourceURLs", ())))
        names = ", ".join(f"`{one}`" for one in rule.get("resourceNames", ()))
        yield f"{', '.join(rule['verbs'])} {what}" + (f", only {names}" if names else "")
