"""Where a serving opsctl keeps its files: the layout of the state directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import PreconditionError


@dataclass(frozen=True)
class Places:
    """Paths inside one state directory; one directory is one instance."""

    root: Path

    @property
    def socket(self) -> Path:
        """Control socket; its directory is private to the user."""
        return self.root / "run" / "control.sock"

    @property
    def lock(self) -> Path:
        """Held by the one opsctl that serves from here."""
        return self.root / "run" / "serve.lock"

    @property
    def state(self) -> Path:
        """What a later opsctl must know to find this one's engine."""
        return self.root / "state.json"

    @property
    def events(self) -> Path:
        """The journal."""
        return self.root / "events.jsonl"

    @property
    def load(self) -> Path:
        """The load journal: samples, decisions and switches of the watchdog."""
        return self.root / "load.jsonl"

    @property
    def engine_log(self) -> Path:
        """The engine's output, appended by the engine itself."""
        return self.root / "logs" / "engine.log"

    @property
    def standby_log(self) -> Path:
        """Output of every other engine of gated restarts, so that two never share a file."""
        return self.root / "logs" / "engine.2.log"

    @property
    def engine_logs(self) -> tuple[Path, Path]:
        """Both files that engines may write to."""
        return self.engine_log, self.standby_log

    @property
    def simulated_gpu(self) -> Path:
        """Ledger of the memory that simulated engines say they hold."""
        return self.root / "run" / "simulated-gpu.jsonl"

    def create(self) -> None:
        """Make the directories; those with the socket and the log are private (0700).

        Raises PreconditionError when they cannot be made or belong to somebody else.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for path in (self.socket.parent, self.engine_log.parent):
                path.mkdir(exist_ok=True)
                path.chmod(0o700)
        except OSError as error:
            raise PreconditionError(
                f"cannot keep state in {self.root}: {error.strerror} ({error.filename})",
                hint="name another directory with --state-dir, OPSCTL_STATE_DIR or `state_dir`",
            ) from error
