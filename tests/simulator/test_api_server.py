"""The simulated API server as a program, and what only it can be asked to do."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from mpsd.platform.kube import Kube, Object, PatchKind, Rejected, Resource, Unavailable
from mpsd.simulator.programs import wait_until
from tests.simulated_api import simulated_api
from tests.whole.webhook.world import VALIDATING, free_port, gpu_pod, webhook
from tests.world.asking import answers

DEADLINE_S = 20.0
MANIFESTS = Path(__file__).parents[2] / "manifests"
PODS, JOBS, EVENTS = Resource("v1", "pods"), Resource("batch/v1", "jobs"), Resource("v1", "events")
_WEBHOOKS = "admissionregistration.k8s.io/v1"
CONFIGURATIONS = {
    kind: Resource(_WEBHOOKS, f"{kind.lower()}s")
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
}


def kubectl(kubeconfig: Path, *arguments: str, given: str = "") -> str:
    program = Path(sys.executable).parent / "kubectl"
    command = [str(program), "--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def program(folder: Path) -> Iterator[Path]:
    """The kubeconfig of one that runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "mpsd.simulator.api_server.server", "--dir", str(folder)]
    ) as process:
        try:
            kubeconfig = folder / "kubeconfig"
            wait_until(kubeconfig.exists, DEADLINE_S, "the kubeconfig written", 0.02)
            yield kubeconfig
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_the_program_takes_our_manifests_from_kubectl_and_shows_an_mpsnode_in_columns(
    tmp_path: Path,
) -> None:
    with program(tmp_path) as kubeconfig:
        assert kubeconfig.stat().st_mode & 0o077 == 0
        for words in ("created", "unchanged"):
            lines = kubectl(
                kubeconfig, "apply", "--validate=false", "-f", str(MANIFESTS / "install.yaml")
            ).splitlines()
            assert len(lines) > 10
            others = [line for line in lines if not line.endswith(words)]
            # kubectl replaces the selector of a budget each time.
            assert [line for line in others if not line.startswith("poddisruptionbudget")] == []
        made = {"apiVersion": "mpsd.io/v1alpha1", "kind": "MPSNode", "metadata": {"name": "node1"}}
        kubectl(kubeconfig, "apply", "--validate=false", "-f", "-", given=json.dumps(made))
        condition = {"type": "MPSReady", "status": "True", "reason": "AllServe", "message": "m"}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        status = {
            "status": {
                "conditions": [condition],
                "summary": {"gpus": "8x NVIDIA H200", "domains": "8/8"},
            }
        }
        patch = (
            "patch",
            "mps",
            "node1",
            "--subresource=status",
            "--type=merge",
            "-p",
            json.dumps(status),
        )
        kubectl(kubeconfig, *patch)
        header, row = kubectl(kubeconfig, "get", "mps").splitlines()
        assert header.split()[:5] == ["NAME", "READY", "REASON", "GPUS", "DOMAINS"]
        assert row.split()[:7] == ["node1", "True", "AllServe", "8x", "NVIDIA", "H200", "8/8"]


# -- admission -----------------------------------------------------------------------------------


async def register(kube: Kube) -> None:
    """What `kubectl apply` of the manifests leaves in a cluster, as far as the webhook touches
    it."""
    await kube.create(Resource("v1", "namespaces"), {"metadata": {"name": "mpsd-system"}})
    for document in yaml.safe_load_all((MANIFESTS / "install.yaml").read_text()):
        if document["kind"] in CONFIGURATIONS:
            await kube.create(CONFIGURATIONS[document["kind"]], document)


async def fails_closed(kube: Kube) -> bool:
    configuration = await kube.get(
        CONFIGURATIONS["ValidatingWebhookConfiguration"], VALIDATING.rsplit("/", 1)[1]
    )
    return all(one["failurePolicy"] == "Fail" for one in configuration["webhooks"])


def bad_pod() -> Object:
    pod = gpu_pod()
    pod["spec"]["containers"][0]["env"] = [
        {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}
    ]
    return pod


def test_the_webhook_registers_itself_and_has_its_say_on_pods_and_on_the_pods_of_jobs(
    tmp_path: Path,
) -> None:
    port = free_port()
    with simulated_api() as api:
        kubeconfig = api.kubeconfig(tmp_path)
        answers(kubeconfig, register)

        async def ask(kube: Kube) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while not await fails_closed(kube):  # noqa: ASYNC110 - the webhook does it
                    await asyncio.sleep(0.05)
            with pytest.raises(Rejected, match="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
                await kube.create(PODS, bad_pod(), "default")
            plain = {
                "metadata": {"name": "plain"},
                "spec": {"containers": [{"name": "main", "image": "i"}]},
            }
            made = await kube.create(PODS, plain, "default")
            variables = {one["name"]: one["value"] for one in made["spec"]["containers"][0]["env"]}
            assert variables == {"NVIDIA_VISIBLE_DEVICES": "void"}
            template = {"spec": gpu_pod()["spec"] | {"restartPolicy": "Never"}}
            job = {"metadata": {"name": "train"}, "spec": {"template": template}}
            await kube.create(JOBS, job, "default")
            async with asyncio.timeout(DEADLINE_S):
                query = {"labelSelector": "job-name=train"}
                while not (pods := await kube.list(PODS, "default", query)):  # noqa: ASYNC110 - the server makes them
                    await asyncio.sleep(0.02)
            assert pods[0]["spec"]["hostIPC"] is True

        with webhook(
            tmp_path, kubeconfig=str(kubeconfig), url=f"https://127.0.0.1:{port}", port=str(port)
        ):
            answers(kubeconfig, ask)

        async def ask_nobody(kube: Kube) -> None:
            with pytest.raises(Unavailable, match=r"failed calling webhook .mutate\.mpsd\.io"):
                await kube.create(PODS, gpu_pod(), "default")
            name = VALIDATING.rsplit("/", 1)[1]
            for resource in CONFIGURATIONS.values():
                seen = await kube.get(resource, name)
                webhooks = [one | {"failurePolicy": "Ignore"} for one in seen["webhooks"]]
                await kube.patch(resource, name, {"webhooks": webhooks}, PatchKind.MERGE)
            await kube.create(PODS, gpu_pod(), "default")

        answers(kubeconfig, ask_nobody)


# -- what a test may do to it --------------------------------------------------------------------


def test_what_is_stored_outlives_a_server_that_is_stopped_and_started(tmp_path: Path) -> None:
    with simulated_api() as api:
        kubeconfig = api.kubeconfig(tmp_path)
        answers(kubeconfig, register)
        api.stop()

        async def nobody(kube: Kube) -> None:
            with pytest.raises(Unavailable):
                await fails_closed(kube)

        answers(kubeconfig, nobody)
        api.start()
        assert answers(kubeconfig, fails_closed) is False


def test_a_stranger_is_not_let_in(tmp_path: Path) -> None:
    with simulated_api() as api:
        kubeconfig = api.kubeconfig(tmp_path)
        kubeconfig.write_text(kubeconfig.read_text().replace("token: ", "token: not-"))
        with pytest.raises(Exception, match="does not know mpsd's credentials"):
            answers(kubeconfig, fails_closed)


def test_the_program_says_what_it_needs() -> None:
    command = [sys.executable, "-m", "mpsd.simulator.api_server.server"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), timeout=30, check=False
    )
    assert done.returncode == 2
    assert "--dir" in done.stderr
