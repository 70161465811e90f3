"""The entry point that launchers and hooks on users' machines import, whichever version wrote
them."""

from mpsd.containers.runtime.main import main as main
