"""The run of a deployed federation as an object, for programs and notebooks (:func:`fedsynth.load_run`)."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.deploy.files.server import over_files
from fedsynth.deploy.run_events import FILES, AttemptEnded, EventReader, WorkAdvanced, events_file, run_watched
from fedsynth.deploy.status import RunView, follow
from fedsynth.errors import FedsynthError
from fedsynth.models.synthesizer import Synthesizer, load
from fedsynth.platforms import require_posix
from fedsynth.plugins import named
from fedsynth.progress import Progress, shown
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FederationRun:
    """The run that the folder of a federation describes in ``job.toml``: ``job``, and what it has written."""

    folder: Path
    job: Job

    @property
    def out(self) -> RunFolder:
        """The directory of the run's results, which appears when it is complete."""
        return RunFolder(self.folder / "runs" / self.job.deployed.run)

    def fit(
        self,
        *,
        exchange: Path | str | None = None,
        without: Collection[str] = (),
        connection: str = "federation",
        database: Path | str | None = None,
        progress: bool | Progress = False,
    ) -> Synthesizer:
        """Make the run over the sites, or resume it, and return its synthesizer; of a complete run, just return it.

        By default Flower carries the messages, and the run goes on at the server; ``connection`` is the name under
        which Flower's config.toml lists it, and ``database`` the file of its SuperLink, from which the messages are
        deleted at the end. With ``exchange``, the folder that carries files, the run goes on in this process and waits
        for the sites; ``without`` names sites that cannot answer. ``progress`` shows progress bars, or is a callback.
        Raises the errors that end a run, after which the same call resumes it.
        """
        if not self.out.is_run:
            require_posix("the run of a federation")
            with shown(progress) as report:
                if exchange is None:
                    self._over_flower(connection, None if database is None else Path(database), report)
                else:
                    self._over_files(Path(exchange), without, report)
        return load(self.out.model_file)

    def answers(self) -> Any:
        """Return the answers of the complete run to its declared questions, and how its criteria are met.

        They are a :class:`~fedsynth.answers.commands.RunAnswers`. Raises :class:`~fedsynth.errors.FedsynthError` for a
        run that is not complete or declared no questions.
        """
        return named("fedsynth.answers.commands:run_answers")(self.out.path)

    def estimate(self, condition: str) -> Any:
        """Return the share and the number of rows that meet a condition, from the tables that the run released.

        They are two :class:`~fedsynth.answers.questions.Answer`. Raises the errors of
        :func:`~fedsynth.answers.commands.run_estimate`.
        """
        return named("fedsynth.answers.commands:run_estimate")(self.out.path, condition)

    def _over_files(self, exchange: Path, without: Collection[str], progress: Progress) -> None:
        attempt = f"{FILES}{secrets.token_hex(4)}"
        run_watched(
            self.job,
            self.folder,
            attempt,
            lambda job, tell: over_files(job, self.folder, exchange, without=without),
            progress,
        )

    def _over_flower(self, connection: str, database: Path | None, progress: Progress) -> None:
        from fedsynth.deploy.flower.control import FlowerControl, purge_after

        control = FlowerControl(self.folder, connection)
        reader = EventReader(events_file(self.folder, self.job.deployed.run))
        attempt = control.start()

        def unheard() -> None:
            if said := control.require_begun(attempt):
                _log.warning("%s", said)

        ended = _follow(reader, attempt, unheard, progress)
        try:
            purge_after(control, attempt, database or self.folder / "server" / "superlink.db")
        except FedsynthError as error:
            _log.warning("the SuperLink still holds the run's messages: %s", error)
        if ended.exit_code:
            raise FedsynthError(f"the run ended: {ended.message}; call fit again to resume it")


def _follow(reader: EventReader, attempt: str, unheard: Callable[[], object], progress: Progress) -> AttemptEnded:
    view = RunView(attempt)
    for event in follow(reader, view, unheard):
        if isinstance(event, WorkAdvanced):
            progress(event.what, event.done, event.total)
    assert view.ended is not None
    return view.ended


def load_run(folder: Path | str) -> FederationRun:
    """Return the run of a federation of real sites, from the folder that ``fedsynth deploy init`` wrote.

    Raises :class:`~fedsynth.errors.FedsynthError` for another folder, and for the job of a simulation.
    """
    home = Path(folder)
    if not (home / "job.toml").is_file():
        raise FedsynthError(f"{home} holds no job.toml; give the folder written by `fedsynth deploy init`")
    job = Job.load(home / "job.toml")
    _ = job.deployed
    return FederationRun(home, job)
