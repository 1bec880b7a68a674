"""The policies folder: files that never change, and one pointer."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from monitor.core.policy import policy as make
from monitor.store.policies import Pointer, Policies, PolicyError, checksum
from rows import next_edge

AT = 1_700_000_000_123


def made(ident, version="1", threshold=0.5):
    """Return a policy with its checksum."""
    policy = make(ident, "m", version, {"all": threshold})
    return replace(policy, checksum=checksum(policy))


def half(ident):
    """Return a policy of the id with the threshold one half."""
    return make(ident, "m", "1", {"all": 0.5})


@pytest.fixture
def policies(tmp_path):
    """Give an empty folder of model m."""
    return Policies(tmp_path / "policies", "m")


def test_create_and_read(policies):
    """A new policy has its threshold on the next edge and a checksum, and reads back as it is."""
    with policies.lock():
        policy = policies.create("1", AT, lambda ident: make(ident, "m", "1", {"all": 0.3}, provenance={"who": "ann"}))
    expected = make("1700000000-1", "m", "1", {"all": next_edge(0.3)}, provenance={"who": "ann"})
    assert policy == replace(expected, checksum=checksum(expected))
    assert policies.read("1", "1700000000-1") == policy
    assert checksum(replace(policy, checksum="")) == policy.checksum


def test_ids_are_epoch_number(policies):
    """Numbers count up within the epoch of the folder's first policy, past nine too, for each version by itself."""
    with policies.lock():
        for i in range(11):
            policies.create("1", AT + i * 10_000, half)
        policies.create("2", AT + 99_000, lambda ident: make(ident, "m", "2", {"all": 0.5}))
    assert policies.ids("1") == [f"1700000000-{i}" for i in range(1, 12)]
    assert policies.ids("2") == ["1700000099-1"]
    assert policies.ids("3") == []


def test_ids_of_people(policies):
    """Policies that a person named differently stand before the others, under their own names, and do not disturb the count."""
    with policies.lock():
        for ident in ("by hand", "7", "²-1", "a-b"):
            policies.add(made(ident))
        assert policies.create("1", AT, half).id == "1700000000-1"
        assert policies.create("1", AT + 5_000, half).id == "1700000000-2"
    assert policies.ids("1") == ["7", "a-b", "by hand", "²-1", "1700000000-1", "1700000000-2"]
    assert [policies.read("1", name).id for name in policies.ids("1")] == policies.ids("1")


@pytest.mark.parametrize("ident", ["current", ""])
def test_forbidden_ids(policies, ident):
    """A policy cannot take the place of current.json."""
    with pytest.raises(PolicyError, match="the id of a policy must not be"):
        policies.add(made(ident))
    assert policies.current("1") is None


def test_an_id_that_predictions_cannot_name(policies):
    """An id is no longer than what events have room for: whoever followed the policy would have every prediction rejected."""
    assert policies.add(made("i" * 128)).id == "i" * 128
    with pytest.raises(PolicyError, match="has 129 characters; predictions can name at most 128"):
        policies.add(made("i" * 129))


def test_policies_never_change(policies):
    """A second policy of the same id is refused; a file that was edited is refused because of its checksum."""
    policies.add(made("1-1"))
    path = policies.of("1") / "1-1.json"
    with pytest.raises(PolicyError) as e:
        policies.add(made("1-1", threshold=0.25))
    assert str(e.value) == f"{path}: exists; policies never change"
    path.write_text(path.read_text().replace("0.5", "0.25"))
    with pytest.raises(PolicyError) as e:
        policies.read("1", "1-1")
    assert str(e.value) == f"{path}: its checksum does not hold; policies never change, activate a new one instead"


def test_unreadable(policies):
    """What is missing, no policy, or of another version is refused by name."""
    folder = policies.of("1")
    with pytest.raises(PolicyError, match=f"{folder}/9-9.json: no such policy"):
        policies.read("1", "9-9")
    policies.add(made("1-1"))
    (folder / "1-2.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"1-2\.json: not a policy"):
        policies.read("1", "1-2")
    (folder / "1-3.json").write_text((folder / "1-1.json").read_text())
    with pytest.raises(PolicyError, match=r"1-3\.json: is policy 1-1 of m 1"):
        policies.read("1", "1-3")


def test_current(policies):
    """The pointer says policy, who, why and when; before the first there is none; another content is refused."""
    assert policies.current("1") is None
    pointer = Pointer("1-1", "ann", "because", AT)
    policies.point("1", pointer)
    path = policies.of("1") / "current.json"
    assert json.loads(path.read_text()) == {"policy": "1-1", "who": "ann", "reason": "because", "at": AT}
    assert policies.current("1") == pointer
    for text in ("{", "[]", '{"policy": "1-1"}', '{"policy": "a", "who": "b", "reason": "c", "at": 1, "more": 2}'):
        path.write_text(text)
        with pytest.raises(PolicyError, match=r"current\.json: not \{policy, who, reason, at\}"):
            policies.current("1")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_pointer(policies, monkeypatch, call):
    """Where the disk is full before the rename, the pointer stays what it was, and the error names the file."""
    policies.point("1", Pointer("1-1", "ann", "", AT))

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(PolicyError, match=r"current\.json: No space left on device"):
        policies.point("1", Pointer("1-2", "bob", "", AT))
    assert policies.current("1") == Pointer("1-1", "ann", "", AT)
    assert policies.ids("1") == []


def test_the_pointer_is_never_half_written(policies):
    """A reader that looks all the time sees one whole pointer or another."""
    policies.point("1", Pointer("0", "ann", "x" * 5_000, 0))
    done, seen = threading.Event(), []

    def read():
        while not done.is_set():
            seen.append(policies.current("1"))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(200):
        policies.point("1", Pointer(str(i), "ann", "x" * 5_000, i))
    done.set()
    reader.join()
    assert [p.at for p in seen] == sorted(p.at for p in seen)
    assert all(p.reason == "x" * 5_000 for p in seen)


@pytest.mark.parametrize("version", ["1", "a/b", "../x", "..", ".", "ü", "2024-01-01 12:00"])
def test_any_version_is_a_safe_folder(policies, version):
    """Names of versions never lead out of the folder, and no two share one."""
    assert policies.of(version).parent == policies.folder
    assert policies.of(version).name not in (".", "..")
    policies.add(made("1-1", version))
    assert policies.read(version, "1-1").version == version


def test_lock(policies):
    """While one process holds the lock another waits for it."""
    code = "from monitor.store.policies import Policies\nfrom pathlib import Path\nimport sys\n"
    code += "with Policies(Path(sys.argv[1]), 'm').lock():\n    print('held')"
    with policies.lock():
        other = subprocess.Popen([sys.executable, "-c", code, str(policies.folder)], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=1)
    assert other.communicate(timeout=60) == ("held\n", None)


def test_no_folder(tmp_path):
    """A folder that cannot be made is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PolicyError, match=f"{tmp_path}/file/m: Not a directory"), Policies(tmp_path / "file" / "m", "m").lock():
        pass
