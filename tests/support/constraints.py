"""A worse environment for a command that was just forked: fewer rights, less space, closed streams."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any


def constrain(wanted: dict[str, Any]) -> None:
    """Make the environment of this process as bad as asked for, and take root's exemptions from permissions away."""
    for name in wanted.get("unset", []):
        os.environ.pop(name, None)
    if "HF_DATASETS_CACHE" in os.environ:
        sys.modules["datasets"].config.HF_DATASETS_CACHE = Path(os.environ["HF_DATASETS_CACHE"])
    tempfile.tempdir = None
    if wanted.get("deleted_cwd"):
        os.chdir(tempfile.mkdtemp())
        Path.cwd().rmdir()
    if "mount" in wanted:
        _mount_elsewhere(wanted["mount"])
    _change_streams(wanted)
    if "open_files" in wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted["open_files"],) * 2)
    if "file_size" in wanted:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does at its start
        resource.setrlimit(resource.RLIMIT_FSIZE, (wanted["file_size"],) * 2)
    _drop_capabilities()


def _change_streams(wanted: dict[str, Any]) -> None:
    names = ("stdin", "stdout", "stderr")
    for descriptor in wanted.get("full", []):
        os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)
    for descriptor in wanted.get("close", []):
        os.close(descriptor)
        setattr(sys, names[descriptor], None)  # as Python does for a stream that is closed at its start


def _mount_elsewhere(folder: str) -> None:
    """Let this process alone see an empty file system in a folder, as a machine that doesn't share it would."""
    library, new_namespace, private = ctypes.CDLL(None, use_errno=True), 0x20000, (1 << 18) | 16384
    for failed in (
        library.unshare(new_namespace),
        library.mount(b"none", b"/", None, private, None),
        library.mount(b"none", folder.encode(), b"tmpfs", 0, None),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), "can't mount")


def _drop_capabilities() -> None:
    """Root without capabilities obeys permissions as everyone else does."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    none = (ctypes.c_uint32 * 6)()
    ctypes.CDLL(None, use_errno=True).capset(header, none)
