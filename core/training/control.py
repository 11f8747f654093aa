"""How listeners and signals ask the loop to stop, evaluate or save."""

from __future__ import annotations

from signal import Signals


class Control:
    """Requests to the loop, at any moment and in any process.

    A request counts from the next `agree` on, which all processes call after each event. If a process acted on a
    signal at once, the others would wait for its gradients forever.
    """

    def __init__(self) -> None:
        self.stopping: str | None = None
        """Why the run stops, once it does."""
        self.signum: int | None = None
        """The signal that stops it, if one does."""
        self.paused = False
        """Whether it stops to be resumed later, without a signal."""
        self.wants_evaluation = False
        self.wants_save = False
        self._reason: str | None = None
        self._signum = 0
        self._pause = False
        self._evaluate = False
        self._save = False

    def stop(self, reason: str) -> None:
        """Stop the run after this update, with a checkpoint."""
        self._reason = self._reason or reason

    def pause(self, reason: str) -> None:
        """Stop the run after this update, with a checkpoint and without an export, to be resumed later."""
        self._pause = True
        self.stop(reason)

    def interrupt(self, signum: int, reason: str) -> bool:
        """Stop the run because of a signal. Return False if one came before."""
        if self._signum:
            return False
        self._signum = signum
        self.stop(reason)
        return True

    def evaluate(self) -> None:
        """Evaluate now."""
        self._evaluate = True

    def save(self) -> None:
        """Save a checkpoint now."""
        self._save = True

    @property
    def is_asked(self) -> bool:
        """Whether there is a request in this process that has not been agreed on yet."""
        new_reason = self._reason is not None and self.stopping is None
        return new_reason or self.has_new_signal or self._evaluate or self._save

    @property
    def has_new_signal(self) -> bool:
        """Whether a signal has come that has not been agreed on yet."""
        return bool(self._signum and not self.signum)

    def agree(self) -> None:
        """Make what was asked in any process count in all of them. All processes must call this together."""
        from taskrecipe.training.exchange import max_over_processes  # needs torch, and specs are checked without it

        asked = [int(self._reason is not None), self._signum, int(self._evaluate), int(self._save), int(self._pause)]
        self._evaluate = self._save = False
        stop, signum, evaluate, save, pause = max_over_processes(asked)
        if stop or signum:
            other = f"interrupted by {Signals(signum).name}" if signum else "another process asked to stop"
            self.stopping = self.stopping or self._reason or other
        self.signum = self.signum or signum or None
        self.paused |= bool(pause)
        self.wants_evaluation |= bool(evaluate)
        self.wants_save |= bool(save)
