"""The policies folder: one immutable file per policy, and current.json, the only statement of what is served."""

import fcntl
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from monitor.core.policy import Policy, from_json
from monitor.store.files import make_folder, safe_name, write_whole

_PATIENCE = 10
"""Seconds to wait for another writer; the agent stores nothing while it waits."""
_ID = 128
"""So many characters `policy` of an event has room for: what a model server follows it has to name."""


class PolicyError(Exception):
    """A policy cannot be read, written or served; the message says why."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """What current.json says: which policy is served, who said so, why, and when (ms since 1970)."""

    policy: str
    who: str
    reason: str
    at: int


def _numbers(name: str) -> tuple[int, ...]:
    """Return (epoch, number) of an id that has this form; others come before all of these."""
    return tuple(map(int, name.split("-"))) if re.fullmatch("[0-9]+-[0-9]+", name) else ()


def checksum(policy: Policy) -> str:
    """Return the SHA-256 of the policy's content."""
    return "sha256:" + hashlib.sha256(policy.content().encode()).hexdigest()


class Policies:
    """The policies of one model: <folder>/<version>/<id>.json and <folder>/<version>/current.json.

    Writers hold a lock file, so the agent and a person's command never write at the same time. Raises PolicyError.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model = folder, model

    def of(self, version: str) -> Path:
        """Return the folder of a version; any name is safe as a folder name."""
        return self.folder / safe_name(version)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder's lock file."""
        try:
            make_folder(self.folder)
            handle = (self.folder / ".lock").open("w")
        except OSError as e:
            raise PolicyError(f"{self.folder}: {e.strerror}") from None
        with handle:
            deadline = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise PolicyError(f"{self.folder}: another process has held the lock for {_PATIENCE} s") from None
                    time.sleep(0.01)
            yield

    def current(self, version: str) -> Pointer | None:
        """Return what is served, None when nothing is."""
        path = self.of(version) / "current.json"
        try:
            pointer = Pointer(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError) as e:
            raise PolicyError(f"{path}: not {{policy, who, reason, at}}: {e}") from None
        if not all(isinstance(x, str) for x in (pointer.policy, pointer.who, pointer.reason)) or type(pointer.at) is not int:
            raise PolicyError(f"{path}: policy, who and reason must be texts and at a number, the ms since 1970")
        return pointer

    def read(self, version: str, name: str) -> Policy:
        """Return a policy; its checksum, model and version must hold."""
        path = self.of(version) / f"{safe_name(name)}.json"
        try:
            policy = from_json(path.read_text())
        except FileNotFoundError:
            raise PolicyError(f"{path}: no such policy") from None
        except (OSError, ValueError) as e:
            raise PolicyError(f"{path}: {e}") from None
        if checksum(policy) != policy.checksum:
            raise PolicyError(f"{path}: its checksum does not hold; policies never change, activate a new one instead")
        if (policy.model, policy.version, policy.id) != (self.model, version, name):
            raise PolicyError(f"{path}: is policy {policy.id} of {policy.model} {policy.version}")
        return policy

    def ids(self, version: str) -> list[str]:
        """Return the ids of all policies of a version, oldest first."""
        names = [unquote(p.stem) for p in self.of(version).glob("*.json") if p.stem != "current"]
        return sorted(names, key=lambda name: (_numbers(name), name))

    def create(self, version: str, at: int, make: Callable[[str], Policy]) -> Policy:
        """Write the next policy, which `make` returns for its id, and return it. Hold the lock.

        Ids are `epoch-number`: the epoch is when this folder got its first policy, so a lost folder never reuses one.
        """
        last = max(map(_numbers, self.ids(version)), default=())
        epoch, number = (last[0], last[1] + 1) if last else (at // 1000, 1)
        policy = make(f"{epoch}-{number}")
        self.check(version, policy)
        return self.add(replace(policy, checksum=checksum(policy)))

    def check(self, version: str, policy: Policy) -> None:
        """Refuse a policy of another model or version, before it is written: its file would stay for ever."""
        if (policy.model, policy.version) != (self.model, version):
            raise PolicyError(f"the policy is for {policy.model} {policy.version}, not for {self.model} {version}")

    def add(self, policy: Policy) -> Policy:
        """Write a policy whose checksum is set. Hold the lock."""
        path = self.of(policy.version) / f"{safe_name(policy.id)}.json"
        if policy.id in ("", "current"):
            raise PolicyError(f"{path}: the id of a policy must not be {policy.id!r}")
        if len(policy.id) > _ID:
            raise PolicyError(f"the id of the policy has {len(policy.id)} characters; predictions can name at most {_ID}")
        if path.exists():
            raise PolicyError(f"{path}: exists; policies never change")
        self._write(path, policy.to_json())
        return policy

    def point(self, version: str, pointer: Pointer) -> None:
        """Make a policy current, atomically. Hold the lock."""
        text = (
            json.dumps({"policy": pointer.policy, "who": pointer.who, "reason": pointer.reason, "at": pointer.at}, indent=2)
            + "\n"
        )
        self._write(self.of(version) / "current.json", text)

    def _write(self, path: Path, text: str) -> None:
        try:
            write_whole(path, text)
        except OSError as e:
            raise PolicyError(f"{path}: {e.strerror}") from None
