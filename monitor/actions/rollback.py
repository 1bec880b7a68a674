"""Change which policy is served: the one action of an alert, and the two commands of a person."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from monitor.core.policy import Policy
from monitor.store.policies import Pointer, Policies, PolicyError, checksum

__all__ = ["Change", "Pointer", "Policies", "PolicyError", "activate", "carry_out", "checksum", "draft", "rollback"]


class Change(NamedTuple):
    """A pointer change that the journal gets before current.json does; `body` is the journal entry's."""

    kind: str
    version: str
    pointer: Pointer
    body: dict[str, Any]


def _change(policies: Policies, kind: str, version: str, pointer: Pointer) -> Change:
    before = policies.current(version)
    body = {**asdict(pointer), "before": None if before is None else asdict(before)}
    return Change(kind, version, pointer, body)


def draft(policies: Policies, version: str, at: int, make: Callable[[str], Policy]) -> Policy:
    """Write the next policy, which `make` returns for its id, without serving it."""
    with policies.lock():
        return policies.create(version, at, make)


def activate(policies: Policies, version: str, policy: Policy, who: str, reason: str, at: int) -> Change:
    """Write the policy if it is not written yet and return the change that makes it current."""
    with policies.lock():
        policies.check(version, policy)
        if checksum(policy) != policy.checksum:
            raise PolicyError("the checksum of the policy does not hold; leave it out and it is computed")
        if policy.id not in policies.ids(version):
            policies.add(policy)
        made = policies.read(version, policy.id)
        if made.checksum != policy.checksum:
            raise PolicyError(f"there is another policy {made.id}, and policies never change; leave out the id for a new one")
    return _change(policies, "activated", version, Pointer(made.id, who, reason, at))


def rollback(policies: Policies, version: str, to: str, who: str, reason: str, at: int) -> Change:
    """Return the change that makes an earlier policy current again; the policy must be readable."""
    policies.read(version, to)
    return _change(policies, "rolled_back", version, Pointer(to, who, reason, at))


def carry_out(policies: Policies, change: Change) -> None:
    """Replace current.json, after the journal said so."""
    with policies.lock():
        policies.point(change.version, change.pointer)
