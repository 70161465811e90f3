"""What `kubectl mps uninstall` goes by: the label of everything that mpsd's manifests make."""

import pytest

from mpsd.model.names import LABEL, NAME_LABEL, PRODUCT
from mpsd.operations.lifecycle.rules.emptying import Stage, Thing, in_order
from mpsd.operations.lifecycle.rules.upgrade import SELECTOR
from tests.manifests.rendering import ALL, PLAIN, Object, called, rendered


def thing(made: Object) -> Thing:
    metadata = made["metadata"]
    component = metadata.get("labels", {}).get(NAME_LABEL, "")
    return Thing(
        made["apiVersion"],
        "",
        made["kind"],
        metadata.get("namespace", ""),
        metadata["name"],
        "",
        component,
    )


@pytest.mark.parametrize("place", ALL)
def test_everything_that_is_made_says_that_it_is_mpsds_and_so_do_its_pods_and_secrets(
    place: str,
) -> None:
    for made in rendered(place):
        assert made["metadata"].get("labels", {}).get(LABEL) == PRODUCT, called(made)
        for template in ("template", "secretTemplate"):
            if template in made.get("spec", {}):
                found = made["spec"][template]
                labels = found.get("metadata", found)["labels"]
                assert labels.get(LABEL) == PRODUCT, f"{template} of {called(made)}"
        assert made["kind"] != "Certificate" or "secretTemplate" in made["spec"], called(made)


@pytest.mark.parametrize("place", ALL)
def test_nothing_goes_before_what_depends_on_it(place: str) -> None:
    order = in_order(map(thing, rendered(place)))
    stages = [one.stage for one in order]
    assert stages == sorted(stages)
    at = {f"{one.kind} {one.name}": position for position, one in enumerate(order)}
    policies = [one for one in order if one.kind.endswith("AdmissionPolicy")]
    assert all(
        at[f"{one.kind}Binding {one.name}"] < at[f"{one.kind} {one.name}"] for one in policies
    )
    names = ["DaemonSet mps-control-daemon", "ConfigMap mpsd-limits", "ClusterRole mpsd-agent"]
    names.append("CustomResourceDefinition mpsnodes.mpsd.io")
    if "policies" not in place:
        names = ["MutatingWebhookConfiguration mpsd-webhook", "Deployment mpsd-webhook", *names]
    assert [at[name] for name in names] == sorted(at[name] for name in names)
    assert at["DaemonSet mpsd-agent"] < at["DaemonSet mps-control-daemon"]
    assert stages.count(Stage.DAEMONS) == 1


def test_the_control_daemons_are_found_by_the_labels_that_they_are_shipped_with() -> None:
    wanted = dict(term.split("=") for term in SELECTOR.split(","))
    found = [
        made
        for made in rendered(PLAIN)
        if wanted.items() <= made["metadata"].get("labels", {}).items()
    ]
    assert "DaemonSet mps-control-daemon" in [called(made) for made in found]
    assert [made["kind"] for made in found].count("DaemonSet") == 1
