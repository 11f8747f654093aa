"""Executing a request in this process: choose sample data if need be, open the folder, train or measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe import hub
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.host import fresh_accelerator, preserve_host
from taskrecipe.run.joining import join_peers
from taskrecipe.run.launchers import set_process_defaults
from taskrecipe.run.request import Request
from taskrecipe.run.sample_fallback import reason_for_sample, run_name
from taskrecipe.run.signals import Signals
from taskrecipe.spec.resolve import Resolved
from taskrecipe.system.garbage_collection import paused_garbage_collection

if TYPE_CHECKING:
    from accelerate import Accelerator

    from taskrecipe.run.peers import Peers
    from taskrecipe.training.events import Event


def execute_request(request: Request, resolved: Resolved) -> Iterator[Event]:
    """Yield the events of a request. Of several processes, only the main one yields more than the run's folder."""
    with preserve_host() as environment, Signals() as signals:
        set_process_defaults()
        hub.forget_outage()  # a long-lived process may have lost or found the network
        reason = reason_for_sample(resolved.spec)
        with paused_garbage_collection():
            from taskrecipe.run.device import describe_device
            from taskrecipe.training.events import About, Opened, Start
            from taskrecipe.training.exchange import broadcast_json
            from taskrecipe.training.setup import make_accelerator

        with fresh_accelerator(), join_peers(resolved.spec.launch) as peers:
            accelerator = make_accelerator(resolved.spec)
            # A hub may be within reach of one process and not of another: the main process decides.
            reason = broadcast_json(reason)
            if reason and not resolved.spec.data.sample:
                resolved = request.resolve(sample=True)
            if accelerator.is_main_process:
                network = peers.describe_network()
                device = describe_device(accelerator, resolved.spec.train.precision)
                environment.lend()
                yield About(0, {"device": device, **({"network": network} if network else {})})
                environment.take_back()
            training = False  # training changes no variable, so the host has them for good then
            for event in _execute(request, resolved, accelerator, signals, peers, reason):
                training = training or isinstance(event, Start)
                if accelerator.is_main_process or isinstance(event, Opened):
                    environment.lend()
                    yield event
                    if not training:
                        environment.take_back()


def _execute(
    request: Request,
    resolved: Resolved,
    accelerator: Accelerator,
    signals: Signals,
    peers: Peers,
    sample_reason: str | None,
) -> Iterator[Event]:
    from taskrecipe.training.events import Opened, Planned

    if request.kind == "dry":
        from taskrecipe.run.dry_run import measure_plan

        yield Planned(0, *measure_plan(resolved, accelerator))
        return
    from taskrecipe.run.training_run import TrainingRun

    folder, resume = _open_folder(request, resolved, peers)
    with folder:
        run = TrainingRun(resolved, folder, accelerator, signals, peers)
        try:
            yield Opened(0, str(folder.path))
            yield from run.events(resume=resume, allow=request.allow, sample_reason=sample_reason, pause=request.pause)
        except BaseException:
            if run.loop is None and accelerator.is_main_process:
                folder.discard()  # training never started, so there is nothing to keep
            raise


def _open_folder(request: Request, resolved: Resolved, peers: Peers) -> tuple[RunFolder, bool]:
    """Return the run's folder, and whether to resume. The main process creates or finds it for all, and locks it."""
    from taskrecipe.run.shared_folder import require_shared_folder
    from taskrecipe.training.exchange import broadcast_json, is_main

    if is_main():
        folder, resume = _find_folder(request, resolved, peers.launchers)
        found = broadcast_json([str(folder.path.absolute()), resume])
    else:
        found = broadcast_json(None)
    path, resume = Path(found[0]), bool(found[1])
    try:
        require_shared_folder(path, peers)
    except BaseException:
        if is_main():
            folder.discard()
            folder.close()
        raise
    return (folder if is_main() else RunFolder.open(path)), resume


def _find_folder(request: Request, resolved: Resolved, launchers: Sequence[str]) -> tuple[RunFolder, bool]:
    name = run_name(resolved)
    out = Path(request.out) if request.out else None
    former: RunFolder | None = None
    if request.kind == "resume":
        former = RunFolder.open(Path(request.path))
    elif request.continues:
        former = RunFolder.latest(name, out)
    else:
        former = RunFolder.of_launchers(name, launchers, out)
    resume = request.kind == "resume" or request.continues or former is not None
    if former is None:
        former = RunFolder.create(name, out)
    former.lock()
    former.record_launchers(launchers)
    return former, resume
