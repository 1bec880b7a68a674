"""Programs that are run with a message: a list of arguments, no shell, the message on the standard input, a limit of time."""

import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Event

PLACES = ("model", "version", "type", "rule", "policy", "id")
"""What an argument may hold in braces."""
PLACE = re.compile(r"\{([a-z_]+)\}")
_KEPT = 500
"""So many of the last bytes that a program writes are kept to say what is wrong."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments, and how many ms it may run."""

    args: tuple[str, ...]
    limit: int = 60_000

    def filled(self, values: Mapping[str, str]) -> list[str]:
        """Return the arguments with values in their places; raise ValueError where one would become an option.

        Names of models and versions come from whoever sends events.

        >>> Command(("retrain", "--of={model}", "{version}")).filled({"model": "fraud", "version": "v7"})
        ['retrain', '--of=fraud', 'v7']
        """
        out = [PLACE.sub(lambda found: values.get(found[1], ""), arg) for arg in self.args]
        for arg, made in zip(self.args, out, strict=True):
            if (made.startswith("-") and not arg.startswith("-")) or "\0" in made:
                raise ValueError(f"{arg} would become {made!r}")
        return out

    def run(
        self, values: Mapping[str, str], body: str, stopping: Event | None = None, hidden: Collection[str] = ()
    ) -> tuple[str, str]:
        """Run the program until it ends or its time is over; return a code of reasons.DELIVERED and what is wrong.

        It and what it started are killed when its time is over, or when `stopping` is set. It does not see the `hidden`
        variables of the environment.
        """
        try:
            args = self.filled(values)
        except ValueError as e:
            return "argument", str(e)
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        with tempfile.TemporaryFile() as message:
            message.write(body.encode())
            message.seek(0)
            try:
                process = subprocess.Popen(
                    args, stdin=message, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, start_new_session=True
                )
            except OSError as e:
                return "unreachable", f"{args[0]}: {e.strerror}"
        with process:
            said = self._watch(process, stopping or Event())
        if process.returncode == 0:
            return "delivered", ""
        if said is None:
            return "too_slow", f"it was killed after {self.limit / 1000:g} s"
        what = f"exit code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        return "exit_code", f"{what}: {said}" if said else what

    def _watch(self, process: "subprocess.Popen[bytes]", stopping: Event) -> str | None:
        """Wait for the end of a process and return the end of what it said, None when it was killed."""
        assert process.stdout is not None
        fd, kept, end = process.stdout.fileno(), b"", time.monotonic() + self.limit / 1000
        with selectors.DefaultSelector() as ready:
            ready.register(fd, selectors.EVENT_READ)
            while True:
                # What it left running may hold the pipe open, so its own end counts and not that of its output.
                over = process.poll() is not None
                for _ in ready.select(0 if over else 0.05):
                    if some := os.read(fd, 65536):
                        kept = (kept + some)[-_KEPT:]
                    else:
                        ready.unregister(fd)
                if over:
                    return " ".join(kept.decode(errors="replace").split())
                if time.monotonic() > end or stopping.is_set():
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return None
