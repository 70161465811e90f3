"""An error in a task of the webhook ends it."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.whole.machine.machine import eventually
from tests.whole.webhook.api_server import ApiServer
from tests.whole.webhook.world import DEADLINE_S, is_registered, webhook
from tests.world.dying import Raised

_ROLE = "mpsd.admission.webhook:WebhookRole"
TASKS = (
    Raised(f"{_ROLE}._keep_certificates"),
    Raised(f"{_ROLE}._sweep"),
    Raised("mpsd.platform.limits_files:watch_limits"),
    Raised("mpsd.platform.listener:Listener._take"),
)


@pytest.mark.parametrize("raised", TASKS, ids=str)
def test_an_error_in_a_task_of_the_webhook_ends_it(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Raised
) -> None:
    for name, value in raised.environment(tmp_path / "raise").items():
        monkeypatch.setenv(name, value)
    with webhook(tmp_path, kubeconfig=str(api.kubeconfig(tmp_path))) as one:
        eventually(lambda: is_registered(api), "registered")
        (tmp_path / "raise").touch()
        with suppress(OSError):  # for `_take`; it may have ended by now
            one.public("/healthz")
        assert one.process.wait(DEADLINE_S) == 1
        raised.is_told("mpsd webhook", one.log_text)
