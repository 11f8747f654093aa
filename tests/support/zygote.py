"""A process that has imported what `recipe` needs and forks a copy of itself for each command.

Tests that start dozens of runs would spend nearly all their time importing torch. Commands are read from standard
input, one JSON object a line; each is answered by one line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from contextlib import suppress


def _import_everything() -> None:
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    import evaluate  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import transformers.models.bert.modeling_bert  # noqa: F401
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: F401

    import taskrecipe.cli.run
    import taskrecipe.run.training_run  # noqa: F401


def _become(command: dict[str, object]) -> None:
    """Turn this copy into the command."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    for path, descriptor in ((command["stdout"], 1), (command["stderr"], 2)):
        opened = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir(str(command["cwd"]))
    os.environ.update(command["env"])  # type: ignore[arg-type]
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.argv = ["recipe", *command["arguments"]]  # type: ignore[misc]
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    from taskrecipe.cli import main

    code = 1
    try:
        if "constraints" in command:
            from tests.support.constraints import constrain

            constrain(command["constraints"])  # type: ignore[arg-type]
        if "code" in command:
            exec(compile(str(command["code"]), "<code>", "exec"), {"__name__": "__main__"})
        else:
            main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


def main() -> None:
    _import_everything()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            print(json.dumps(None if pid == 0 else os.waitstatus_to_exitcode(status)), flush=True)
        else:
            pid = os.fork()
            if pid == 0:
                _become(request)
            print(json.dumps(pid), flush=True)


if __name__ == "__main__":
    main()
