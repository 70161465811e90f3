"""The certificate that readers are shown where others get in: one made at start, or that of a folder.

One rule: the key of the one that is made is in memory alone, and one in a folder that cannot be used leaves the last
good one in force.
"""

import asyncio
import socket
import time
from pathlib import Path

from mpsd.admission.webhook_certificates import FolderCertificates
from mpsd.model.durations import DAY_S
from mpsd.platform.certificates import Pair, UnusableCertificate, fingerprint, issue, load_into, new_authority
from mpsd.platform.listen_settings import CannotListen
from mpsd.platform.listener import tls_context
from mpsd.platform.logs import Logger

_LIFE_S = 3650 * DAY_S  # as long as a process may live
_LOOK_S = 10.0  # between two looks at the folder


class ReadersCertificate:
    """folder: of tls.crt and tls.key; None: it is made."""

    def __init__(self, folder: Path | None, log: Logger) -> None:
        self._folder = folder
        self._log = log
        self._shown: Pair | None = None  # None until `load`
        self._trouble = ""
        self.context = tls_context()

    async def load(self) -> None:
        """CannotListen where the folder's certificate cannot be used."""
        try:
            self._show(await _of_folder(self._folder) if self._folder else _made())
        except UnusableCertificate as error:
            raise CannotListen(f"--listen-certificate: {error}") from None

    async def keep(self) -> None:
        """Shows what is renewed in the folder, until it is cancelled."""
        while self._folder:
            await asyncio.sleep(_LOOK_S)
            try:
                found = await _of_folder(self._folder)
                if found != self._shown:
                    self._show(found)
                self._trouble = ""
            except UnusableCertificate as error:
                self._say(str(error))

    def _show(self, pair: Pair) -> None:
        load_into(self.context, pair)
        self._shown = pair
        self._log.info("certificate for readers", sha256=fingerprint(pair.certificate), made=self._folder is None)

    def _say(self, trouble: str) -> None:
        """Once when it changes."""
        if trouble != self._trouble:
            self._log.warning("certificate for readers cannot be used", reason=trouble)
        self._trouble = trouble


async def _of_folder(folder: Path) -> Pair:
    return (await FolderCertificates(folder).look(0)).serving


def _made() -> Pair:
    name, now = socket.gethostname(), time.time()
    return issue(new_authority(f"mpsd on {name}", now, _LIFE_S), [name, "localhost"], now, _LIFE_S)
