"""`mpsd webhook`: one replica of the admission webhook."""

import sys

from mpsd.admission.settings import WEBHOOK_SETTINGS, WebhookSettings, webhook_settings
from mpsd.admission.webhook import WebhookRole
from mpsd.platform import event_loop, life, logs
from mpsd.platform.command_line import takes
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.kube import Unavailable
from mpsd.platform.kube_access import open_kube
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.settings import CannotListen

LATER = ("kubernetes", "psutil", "rich")
_EXPECTED = (CannotListen, Unavailable)


@takes(settings=WEBHOOK_SETTINGS)
def webhook(**flags: str | None) -> None:
    """Answer admission reviews: refuse what breaks sharing, with a remedy for each problem.

    In a cluster it needs no flags: it creates its certificates, registers itself, and renews both.
    The objects and rights that it needs are in manifests/.

        mpsd webhook --kubeconfig ~/.kube/config --url https://10.0.0.7:9443
        mpsd webhook --cert-dir /certs --port 9443
    """
    chosen = webhook_settings(flags)
    logs.configure(chosen.log_format, chosen.log_level)
    try:
        code = life.run("mpsd webhook", lambda: _serve(chosen), _EXPECTED)
    except _EXPECTED as error:
        complaints().print(f"mpsd webhook: {error}")
        code = ExitCode.NO
    sys.exit(code)


async def _serve(chosen: WebhookSettings) -> int:
    kube = open_kube(chosen.kubeconfig) if chosen.uses_api else None
    role = WebhookRole(chosen, LimitsFiles(chosen.limits_directory), kube)
    await role.run(event_loop.until_signalled(role.hurry))
    if kube:
        kube.close()
    return ExitCode.YES
