"""The run folder at a URL for a command that reads it: mirrored on this machine, and uploaded again where the command writes into it."""

from contextlib import ExitStack, suppress

from pipeline.errors import RunFolderError, StoreError, UsageError
from pipeline.remote.object_store import ObjectStore
from pipeline.remote.staging import Staging, is_data
from pipeline.remote.transfer import upload
from pipeline.remote.writer import PREFIX, Tell, at_work, bring_here, writing
from pipeline.store.folder import LOCK, hold, is_held
from pipeline.store.run_file import FILE as CARD

ELSEWHERE = "of another machine"
"""The content of the lock file of a mirror, instead of a pid, while another machine writes the run: then it is in use here, too."""


class Mirror:
    """The folder of this machine that has what the run folder at a URL has.

    Where a process of this machine writes the run, its own folder is read as it is, write-ahead files included.
    """

    def __init__(self, store: ObjectStore, staging: Staging, tell: Tell) -> None:
        self._store, self._staging, self._tell = store, staging, tell
        self._held = ExitStack()
        self._live = False

    @property
    def _ours(self) -> bool:
        """Whether another process of this machine writes the run."""
        return is_held(self._staging.place)

    def refresh(self) -> None:
        """Download what has changed. Raises `StoreError` where there is no run, or this machine has rows that the store lacks."""
        if self._ours:
            return
        store, staging = self._store, self._staging
        listing = store.list()
        if CARD not in listing and not (staging.folder / CARD).exists():
            raise StoreError(str(staging.url), "there is no run; expected a folder with a run.json")
        writers = [name for name in listing if name.startswith(PREFIX)]
        mine = f"{PREFIX}{staging.state.writer}"
        self._set_live(any(at_work(store, name, listing[name]) for name in writers if name != mine))
        if mine not in writers or staging.is_gone:
            bring_here(store, staging, listing, self._tell)

    def close(self) -> None:
        """Upload what the command has written into the folder; raises `RunFolderError` where that fails."""
        live = self._live
        self._held.close()
        changed = {} if self._ours else self._staging.changed()
        if not changed:
            return
        try:
            if any(map(is_data, changed)) and not live:
                with writing(self._store, self._staging, self._tell):
                    pass  # all is written already
            else:
                upload(self._store, self._staging, data=False)
        except (StoreError, UsageError) as error:
            named = ", ".join(sorted(changed)[:5])
            raise RunFolderError(f"{error}; not uploaded: {named}, which is in {self._staging.folder}") from error

    def _set_live(self, live: bool) -> None:
        """Hold the folder while another machine writes the run, so that commands find it in use."""
        if live and not self._live:
            with suppress(UsageError):  # another reader of this machine holds it already
                self._held.enter_context(hold(self._staging.folder))
                (self._staging.folder / LOCK).write_text(ELSEWHERE)
        elif not live:
            self._held.close()
        self._live = live
