"""A line of progress for callers of the Python API: a `View` enters, a bar by rich is drawn in a terminal or a notebook."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.session.observer import View


class _Bar(Progress):
    """A bar that looks at the run whenever it is drawn; the run never waits for it."""

    def __init__(self, view: View) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
        super().__init__(*columns, TimeRemainingColumn())
        self._view, self._run = view, self.add_task(view.plan.name, total=view.chains, said="")

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.tasks:
            progress, (graded, correct) = self._view.progress, self._view.graded()
            parts = [f"{sum(progress.output_tokens.values()):,} tokens", f"{progress.failed:,} failed" if progress.failed else ""]
            parts += [f"{correct:,} of {graded:,} right"] if graded and not self._view.simulated else []
            self.update(self._run, completed=progress.done + progress.failed, said=", ".join(filter(None, parts)))
        return super().get_renderables()


@contextmanager
def progress_shown(view: View) -> Iterator[None]:
    """Draw the progress of `view` until the block ends."""
    with _Bar(view):
        yield
