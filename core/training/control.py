"""The one way back from those who listen to a run into its loop."""

from __future__ import annotations


class Control:
    """What listeners and signals ask of the loop, at any moment and in any process.

    It counts from the next `agree` on, which all processes come to after an event. A process that acted on a signal
    as soon as it came would leave the others waiting for its gradients.
    """

    def __init__(self) -> None:
        self.stopping: str | None = None
        """Why the run stops, once it does."""
        self.signum: int | None = None
        """The signal that stops it, if one does."""
        self.wants_evaluation = False
        self.wants_save = False
        self._reason: str | None = None
        self._signum = 0
        self._evaluate = False
        self._save = False

    def stop(self, reason: str) -> None:
        """End the run after this update, saved."""
        self._reason = self._reason or reason

    def interrupt(self, signum: int, reason: str) -> bool:
        """End the run for a signal; False if one came already."""
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

    def agree(self) -> None:
        """Let what was asked so far in any process count in all of them."""
        from taskrecipe.core.training.peers import highest  # which needs torch, and a spec is checked without

        asked = [int(self._reason is not None), self._signum, int(self._evaluate), int(self._save)]
        self._evaluate = self._save = False
        stop, signum, evaluate, save = highest(asked)
        if stop or signum:
            self.stopping = self.stopping or self._reason or "another process was told to stop"
        self.signum = self.signum or signum or None
        self.wants_evaluation |= bool(evaluate)
        self.wants_save |= bool(save)
