"""YAML -> frozen dataclasses: every default visible, every error names file, key path, what was found and the remedy."""

import difflib
import hashlib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import yaml

from monitor.actions.command import PLACE, PLACES, Command
from monitor.actions.outbox import DELIVER, Target
from monitor.actions.webhook import SecretError, Webhook, secret
from monitor.core.days import MATURE, RECENT
from monitor.core.detectors import OF_PROBABILITIES
from monitor.core.events import DAY, HOUR, MINUTE, NONE, SECOND, VERDICTS
from monitor.core.guards import MODES, UNDO_LIMIT, VOLUME_LIMIT
from monitor.core.metrics import METRICS
from monitor.core.policy import Limit
from monitor.core.readings import ACTING, LabelRule
from monitor.core.rules import ACTIONS, FALSE_ALARMS, SEVERITIES, SHIPPED, SHOWN, Rule, budgeted, detecting
from monitor.core.tables import FEATURES, MOST_CLASSES
from monitor.core.thresholds import Objective, cost
from monitor.store.files import safe_name

ROLES = ("live", "canary", "shadow")
MISSING = ("negative", "unknown")
CLOCKS = ("wall", "events")
HASHES = ("xxh3", "blake2b")
KINDS = ("events", "predictions", "labels")
FORMATS = ("ndjson", "csv")
TICKS = {"wall": 15 * SECOND, "events": HOUR}
RULE_WINDOWS = {"scored": RECENT, "mature": MATURE}
RULE_WINDOW = {"scored": "24h", "mature": "28d"}
MOST_ROWS = 60_000_000
OWN_READING = {
    "policy_volume": ("scored", "24h"),
    "unfollowed_share": ("scored", "1h"),
    "volume_ratio": ("scored", "7d"),
    "coverage_ratio": ("mature", "7d"),
}
"""Basis and window of what is no metric of a reading but of several; each has one of its own."""
LABELS_MODES = ("single", "multi")
SCORES = ("probability", "logit", "margin")
TOP = "top"
"""The target of a model with classes that asks whether the predicted class was right."""
TOKENS = ("ingest", "decide")
"""Who a token lets in: who sends events, and who decides."""
HIDDEN = "***"
"""What describe() writes for a token that stands in the file itself; as a token it is an error."""

LATER = {"inherit"}
"""Keys that a later version will have."""
LATER_SOURCES = {"kafka", "nats", "redis", "postgres"}

NAME = re.compile(r'[^\x00-\x1f"\\\ud800-\udfff]{1,128}')
"""A model, version, segment or rule name; lone surrogates are out because no sender can encode them."""


class ConfigError(Exception):
    """What is wrong with a configuration, one line per error."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach the address; a name other than localhost may be anything."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class HttpSource:
    """Events by POST: the largest body in bytes, and how many events may wait for the writer before 429."""

    max_body: int = 32 * 1024 * 1024
    queue: int = 1_000_000


@dataclass(frozen=True, slots=True)
class FileSource:
    """Events from a file; an empty format follows from the suffix, with or without .gz."""

    path: Path
    kind: str = "events"
    follow: bool = True
    format: str = ""


@dataclass(frozen=True, slots=True)
class VerdictLabels:
    """How outcomes come after one verdict: the horizon in ms (None: never, the outcome is prevented), what none means."""

    horizon: int | None
    missing: str


@dataclass(frozen=True, slots=True)
class Labels:
    """How long a day waits for its labels, what none at the horizon means, how long a label may still change (ms).

    `verdicts` holds the verdicts after which outcomes come differently.
    """

    horizon: int = 30 * DAY
    missing: str = "unknown"
    corrections: int = 28 * DAY
    verdicts: Mapping[str, VerdictLabels] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Return the longest horizon of all verdicts in ms: a day is mature that long after it ended."""
        return max([self.horizon, *(v.horizon for v in self.verdicts.values() if v.horizon is not None)])

    @property
    def rules(self) -> tuple[LabelRule, ...]:
        """Return what a missing label means, by verdict code (the order of events.VERDICTS)."""
        own = VerdictLabels(self.horizon, self.missing)
        found = (self.verdicts.get(verdict, own) for verdict in VERDICTS)
        return tuple(LabelRule(v.missing, never=v.horizon is None) for v in found)


@dataclass(frozen=True, slots=True)
class Recalibrate:
    """When a calibrator is tried: so many mature rows must have an outcome; a trial may take `limit` ms.

    Not `undo` new policies are not compared with the ones before them.
    """

    rows: int = 1_000
    limit: int = 60 * SECOND
    undo: bool = True


@dataclass(frozen=True, slots=True)
class Model:
    """One watched model; the name "*" stands for any other model. A version that `versions` does not name is live.

    `objective` is what the threshold of a new policy is chosen for, `by` the segment whose values may have their own.
    `features` are the names of those that are kept as one byte a row, as far as the baseline has frozen them.
    `review` is how many passed predictions a day are picked for review (0: none), `per_day` how many predictions a day are
    expected (None: nobody said), which only the plan of `check` reads. `false_alarms` are those a year that all detectors of
    a severity may give together. `deliver` is what is called with each policy that becomes current.

    A model with `classes` is watched as binary targets, one a class and, where one class is right (`labels_mode` single), one
    more for the predicted class: `targets` says as which models. Each of these has its `parent`, the model that events name.
    """

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    baseline: Path | None = None
    policies: Path | None = None
    segments: tuple[str, ...] = ()
    labels: Labels = Labels()
    threshold: float | None = None
    mode: str = "propose"
    false_alarms: Mapping[str, float] = field(default_factory=lambda: dict(FALSE_ALARMS))
    rules: tuple[Rule, ...] = budgeted(SHIPPED.values(), FALSE_ALARMS)
    idle_after: int = 24 * HOUR
    review: int = 0
    per_day: int | None = None
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    labels_mode: str = "single"
    score: str = "probability"
    sum_tolerance: float = 0.005
    thresholds: Mapping[str, float] = field(default_factory=dict)
    objective: Objective | None = None
    by: str = ""
    recalibrate: Recalibrate = Recalibrate()
    follow_within: int = 15 * MINUTE
    parent: str = ""
    deliver: tuple[Target, ...] = ()

    @property
    def targets(self) -> "dict[str, Model]":
        """Return by class, and `top`, the binary model that stands for it; nothing without classes.

        Baseline and policies of a target are inside the folder of the model, `threshold` is that of its class; nothing flags
        by the predicted class but the verdict of the event. All targets together have the model's budget of false alarms.
        """
        names = (*self.classes, *((TOP,) if self.classes and self.labels_mode == "single" else ()))
        return {name: self._target(name, len(names)) for name in names}

    def _target(self, name: str, of: int) -> "Model":
        false_alarms = {severity: n / of for severity, n in self.false_alarms.items()}
        return replace(
            self,
            name=f"{self.name}:{name}",
            baseline=self.baseline and self.baseline / f"{safe_name(name)}.json",
            policies=self.policies and self.policies / safe_name(name),
            threshold=None if name == TOP and self.labels_mode == "single" else self.thresholds.get(name, self.threshold),
            rules=budgeted(self.rules, false_alarms),
            false_alarms=false_alarms,
            classes=(),
            thresholds={},
            parent=self.name,
        )

    @property
    def undo(self) -> tuple[Limit, ...]:
        """Return what undoes a new policy, written before it is activated."""
        return VOLUME_LIMIT, *((UNDO_LIMIT,) if self.recalibrate.undo else ())

    def role(self, version: str) -> str:
        """Return live, canary or shadow."""
        return self.versions.get(version, "live")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Bearer tokens of the api by role, each as (owner, token); None where none is needed. No repr shows a token.

    `env` and `files` remember which came from an environment variable or a file. Of a file that whoever runs this may not read
    `unread` says so, and no token is right; `exposed` are the roles whose file every user of the machine can read.
    """

    ingest: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)
    decide: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    exposed: tuple[str, ...] = ()

    def of(self, role: str) -> tuple[tuple[str, str], ...] | None:
        """Return the tokens of a role."""
        return {"ingest": self.ingest, "decide": self.decide}[role]

    def first(self, role: str) -> str | None:
        """Return the token that commands send, None where there is none."""
        return next((token for _, token in self.of(role) or ()), None)

    @property
    def shared(self) -> bool:
        """Return whether a token that lets in events also decides."""
        return not {token for _, token in self.ingest or ()}.isdisjoint(token for _, token in self.decide or ())


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration; times in ms. `tick` is TICKS[clock] unless the file says otherwise.

    `models` are the binary models that are watched, targets of models with classes among them; `parents` are the latter.
    `digest` is the SHA-256 of the file. `actions` are what alerts may call beside what the agent does itself.
    """

    path: Path | None = None
    state: Path = Path("/var/lib/scorewatch")
    api: Address = Address("127.0.0.1", 8480)
    metrics: Address = Address("0.0.0.0", 9480)
    clock: str = "wall"
    tick: int = TICKS["wall"]
    sources: tuple[HttpSource | FileSource, ...] = (HttpSource(),)
    tokens: Tokens = Tokens()
    models: Mapping[str, Model] = field(default_factory=dict)
    hash: str = "xxh3"
    waiting_rows: int = 20_000_000
    parents: Mapping[str, Model] = field(default_factory=dict)
    digest: str = field(default="", compare=False)
    actions: Mapping[str, Target] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, Model]:
        """Return the models as the file and the events name them: those with classes once, without their targets."""
        return {m.parent or name: self.parents.get(m.parent, m) for name, m in self.models.items()}

    @property
    def delivers(self) -> bool:
        """Return whether anybody is told anything; not by a clock of events, whose past nobody is to act on again."""
        return self.clock == "wall" and bool(self.actions or any(m.deliver for m in self.models.values()))

    @property
    def hidden(self) -> frozenset[str]:
        """Return the variables of the environment that hold secrets of the agent, which commands do not see."""
        targets = [*self.actions.values(), *(t for m in self.models.values() for t in m.deliver)]
        given = [s for t in targets if isinstance(t, Webhook) for s in t.secrets if s.startswith("env:")]
        return frozenset((*self.tokens.env.values(), *(s.removeprefix("env:") for s in given)))


# YAML: the core schema of version 1.2, where only true and false are booleans and there are no dates or octal numbers.


class _Scalar(NamedTuple):
    pattern: re.Pattern[str]
    first: tuple[str, ...]
    make: Callable[[str], Any]


_DIGITS = tuple("-+0123456789")
_SCALARS = {
    "tag:yaml.org,2002:null": _Scalar(re.compile(r"(?:~|null|Null|NULL|)\Z"), ("~", "n", "N", ""), lambda _: None),
    "tag:yaml.org,2002:bool": _Scalar(
        re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), tuple("tTfF"), lambda text: text.lower() == "true"
    ),
    "tag:yaml.org,2002:int": _Scalar(re.compile(r"[-+]?[0-9]+\Z"), _DIGITS, int),
    "tag:yaml.org,2002:float": _Scalar(
        re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"),
        (*_DIGITS, "."),
        lambda text: float(re.sub(r"\.(?=[in])", "", text.lower())),
    ),
}
_PLAIN = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map", None)


class _Core(yaml.SafeLoader):
    """Read the core schema; every other tag is an error."""

    yaml_constructors: ClassVar[dict[Any, Any]] = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in _PLAIN}


class _CoreDumper(yaml.SafeDumper):
    """Write what _Core reads, so that `off` needs no quotes and a string like a number gets them."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: equal parts are written out, not referred to."""
        return True


def _construct(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.constructor.ConstructorError(None, None, f"found a mapping or list with the tag {node.tag}", node.start_mark)
    text, scalar = str(node.value), _SCALARS[node.tag]
    try:
        if scalar.pattern.match(text):
            return scalar.make(text)
    except ValueError:  # an int of more than 4,300 digits
        pass
    raise yaml.constructor.ConstructorError(None, None, f"found {_show(text)} with the tag {node.tag}", node.start_mark)


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Single quotes fold characters such as U+0085 into spaces; double quotes escape them.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_CoreDumper.add_representer(str, _quoted)
# Empty first: both classes inherit the resolvers of YAML 1.1.
_Core.yaml_implicit_resolvers = {}
_CoreDumper.yaml_implicit_resolvers = {}
for _tag, _scalar in _SCALARS.items():
    _Core.add_constructor(_tag, _construct)
    # add_implicit_resolver tries in the order of adding, so an int is asked before a float.
    for _yaml in (_Core, _CoreDumper):
        _yaml.add_implicit_resolver(_tag, _scalar.pattern, list(_scalar.first))


def _tree(text: str, at: "_At") -> Any:
    """Return the document as dicts, lists and scalars; keys given twice are noted as errors of `at`."""
    try:
        loader = _Core(text)
        node = loader.get_single_node()
        if node is None:
            return None
        for place, key in _repeated(node, at, set()):
            place.error(f"found the key a second time (line {key.start_mark.line + 1}); write it once")
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        spot = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{at.file}: {spot}{e.problem or e.context}; correct the YAML there") from None
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        raise ConfigError(
            f"{at.file}: line {line}: found the character {chr(e.character)!r}; remove it, YAML does not allow it"
        ) from None
    except RecursionError:
        raise ConfigError(f"{at.file}: found mappings or lists nested too deeply; flatten them") from None


def _repeated(node: yaml.Node, at: "_At", seen: set[int]) -> Iterator[tuple["_At", yaml.Node]]:
    """Yield keys given twice in one mapping; `seen` holds the nodes visited, as aliases may repeat and even contain them."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _repeated(item, at.item(i), seen)
    elif isinstance(node, yaml.MappingNode):
        names = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in names:
                    yield at.child(key.value), key
                names.add((key.tag, key.value))
                yield from _repeated(value, at.child(key.value), seen)


# Reading values: a reader turns one value into what the dataclass holds, or raises _Wrong with what to write instead.


class _Wrong(Exception):
    def __init__(self, remedy: str, found: str = "") -> None:
        self.remedy = remedy
        self.found = found


def key_path(key: str, *names: object) -> str:
    """Return the path of a key inside `key` (empty: the whole file) as errors write it."""
    texts = [str(name) for name in names]
    return ".".join([key] * bool(key) + [text if re.fullmatch(r"[\w*-]+", text) else repr(text) for text in texts])


class _At(NamedTuple):
    """A place in the file, and where its errors are collected."""

    file: str
    base: Path
    errors: list[str]
    key: str = ""
    built: bool = True  # whether baselines must be there

    def child(self, name: object) -> "_At":
        return self._replace(key=key_path(self.key, name))

    def item(self, i: int) -> "_At":
        return self._replace(key=f"{self.key}[{i}]")

    def error(self, message: str) -> None:
        self.errors.append(f"{self.file}: {self.key}: {message}" if self.key else f"{self.file}: {message}")


Reader = Callable[[Any, _At], Any]


def _show(value: Any) -> str:
    """Return a value as an error names it: short, on one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:196]}...{text[0] if isinstance(value, str) else ''}"


def _read(read: Reader, value: Any, at: _At) -> tuple[Any, ...]:
    """Return the value in a tuple, or an empty tuple and one more error."""
    try:
        return (read(value, at),)
    except _Wrong as e:
        at.error(f"found {e.found or _show(value)}; {e.remedy}")
        return ()


def _mapping(value: Any, at: _At, remedy: str) -> dict[str, Any]:
    """Return a mapping whose keys are all strings; nothing is an empty mapping."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _Wrong(remedy)
    for key in value:
        if not isinstance(key, str):
            at.child("null" if key is None else key).error(f"found {_show(key)} as a key; put it in quotes")
    return {key: item for key, item in value.items() if isinstance(key, str)}


def _fields(value: Any, at: _At, readers: Mapping[str, Reader], remedy: str = "") -> dict[str, Any]:
    """Return what a section gives, read key by key; wrong values are left out and noted."""
    given = {}
    keys = tuple(key for key, read in readers.items() if read is not _misplaced)
    for key, item in _mapping(value, at, remedy or f"write a mapping with the keys {_words(keys)}").items():
        here = at.child(key)
        if key in readers:
            for read in _read(readers[key], item, here):
                given[key] = read
        elif key in LATER:
            here.error(f"found {_show(item)}; not available in this version, leave it out")
        else:
            here.error(f"found an unknown key; {_did_you_mean(key, keys)}")
    return given


def _words(words: Mapping[str, Any] | tuple[str, ...], last: str = "or") -> str:
    *most, end = words
    return f"{', '.join(most)} {last} {end}" if most else end


def _did_you_mean(word: str, words: Mapping[str, Any] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, list(words), n=1)
    return f"did you mean {near[0]}?" if near else f"write {_words(words)}"


def _one_of(*words: str) -> Reader:
    def read(value: Any, at: _At) -> str:
        if not isinstance(value, str) or value not in words:
            raise _Wrong(f"write {_words(words)}")
        return value

    return read


_UNITS = {"d": DAY, "h": HOUR, "m": MINUTE, "s": SECOND, "ms": 1}
_LONGEST = 3650 * DAY


def _duration(value: Any, at: _At) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise _Wrong(f"write {_show(value)}s if seconds are meant, else a duration such as 12h or 7d")
    found = re.fullmatch(r"([0-9]{1,15})(ms|s|m|h|d)", value) if isinstance(value, str) else None
    if not found or int(found[1]) * _UNITS[found[2]] > _LONGEST:
        raise _Wrong("write a duration such as 15s, 12h or 7d, at most 3650d")
    return int(found[1]) * _UNITS[found[2]]


def _some_time(value: Any, at: _At) -> int:
    ms = _duration(value, at)
    if not ms:
        raise _Wrong("write a duration longer than 0s")
    return ms


def _horizon(value: Any, at: _At) -> int:
    if value == "never":
        raise _Wrong("write a duration such as 12h or 90d, and never for a verdict: verdicts: {block: {horizon: never}}")
    return _duration(value, at)


def _verdict_horizon(value: Any, at: _At) -> int | None:
    try:
        return None if value == "never" else _duration(value, at)
    except _Wrong as e:
        raise _Wrong(f"{e.remedy}, or never") from None


def _amount(units: Mapping[str, int], example: str, most: int) -> Reader:
    """Return a reader of positive whole numbers with or without one of the units."""

    def read(value: Any, at: _At) -> int:
        text = "" if isinstance(value, bool) else str(value)
        found = re.fullmatch(rf"([0-9]{{1,15}})({'|'.join(units)})?", text)
        n = int(found[1]) * units.get(found[2], 1) if found else 0
        if not 0 < n <= most:
            raise _Wrong(f"write a whole number such as {example}, from 1 to {most}")
        return n

    return read


_COUNTS = {"G": 1_000_000_000, "M": 1_000_000, "k": 1_000}
_SIZES = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "GB": 1000**3, "MB": 1000**2, "kB": 1000}
_count = _amount(_COUNTS, "500 or 20k", 1_000_000_000)
_expected = _amount(_COUNTS, "20k or 2M", 100_000_000_000)


def _number(value: Any, at: _At) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:
        raise _Wrong("write a number")
    return float(value)


def _flag(value: Any, at: _At) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("write true or false")
    return value


def _name(value: Any, at: _At) -> str:
    if not isinstance(value, str):
        raise _Wrong("write a name; put it in quotes if it looks like a number")
    if not NAME.fullmatch(value):
        raise _Wrong('write a name of 1 to 128 characters without control characters, " and \\')
    return value


def _path(value: Any, at: _At) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _Wrong("write a path")
    return at.base / value


def _folder(value: Any, at: _At) -> Path | None:
    return None if value is None else _path(value, at)


def _baseline(value: Any, at: _At) -> Path | None:
    path = _folder(value, at)
    if path is not None and at.built and not os.path.exists(path):
        raise _Wrong(
            "write the path of a baseline, build it there, or leave it out",
            f"{_show(str(path))}, which is no file",
        )
    return path


def _objective(value: Any, at: _At) -> tuple[Objective, str]:
    """Return what a threshold is chosen for, and the segment whose values may have their own."""
    if isinstance(value, str):
        return Objective(value), ""
    given = _fields(value, at, {**_OBJECTIVES, "by": _name}, "write one objective such as {cost: {missed: 10, false_alarm: 1}}")
    names = [key for key in value if key in _OBJECTIVES]
    if len(names) != 1:
        raise _Wrong(
            f"write exactly one of {_words(tuple(_OBJECTIVES))}", _words(tuple(names), "and") if names else "no objective"
        )
    return given.get(names[0], Objective("f1")), given.get("by", "")


def objective_of(option: str, name: str, value: Any) -> Objective:
    """Return the objective that an option of a command gives, as the key `name` of `threshold` has it."""
    at = _At(option, Path(), [])
    found = _read(_OBJECTIVES[name], value, at)
    if at.errors:
        raise ConfigError("\n".join(at.errors))
    made: Objective = found[0]
    return made


def _price(value: Any, at: _At) -> float:
    if not _number(value, at) > 0:
        raise _Wrong("write a number above 0")
    return float(value)


def _worth(names: tuple[str, ...], made: Callable[..., Objective], number: Reader = _number) -> Reader:
    """Return a reader of a mapping that says what each of the names is worth."""

    def read(value: Any, at: _At) -> Objective:
        given = _fields(value, at, dict.fromkeys(names, number))
        if missing := tuple(name for name in names if name not in (value or {})):
            raise _Wrong(f"write {_words(missing, 'and')}, too", f"no {_words(missing)}")
        return made(*(given.get(name, 0.0) for name in names))

    return read


def _kept(name: str) -> Reader:
    """Return a reader of a share that an objective keeps."""

    def read(value: Any, at: _At) -> Objective:
        if not 0.0 < _number(value, at) < 1.0:
            raise _Wrong("write a number between 0 and 1")
        return Objective(name, float(value))

    return read


def _per_day_of(value: Any, at: _At) -> Objective:
    given = _fields(value, at, {"per_day": _count}, "write a mapping such as {per_day: 200}")
    if "per_day" not in (value or {}):
        raise _Wrong("write a mapping such as {per_day: 200}", "no per_day")
    return Objective("capacity", float(given.get("per_day", 1)))


_OBJECTIVES: Mapping[str, Reader] = {
    "cost": _worth(("missed", "false_alarm"), cost, _price),
    "utility": _worth(("tp", "fp", "fn", "tn"), lambda *worth: Objective("utility", utility=worth)),
    "capacity": _per_day_of,
    "min_recall": _kept("min_recall"),
    "precision_floor": _kept("precision_floor"),
    "fpr_cap": _kept("fpr_cap"),
}
_BARE = ("f1", "youden")
"""Objectives that are only named."""


def _thresholds(value: Any, at: _At) -> float | dict[str, float] | tuple[Objective, str] | None:
    """Return one threshold, those by class, or what it is chosen for."""
    if value in _BARE or (isinstance(value, dict) and value.keys() & {*_OBJECTIVES, "by"}):
        return _objective(value, at)
    if not isinstance(value, dict):
        return _threshold(value, at)
    by_class = _mapping(value, at, "").items()
    return {name: t for name, item in by_class for t in _read(_threshold, item, at.child(name)) if t is not None}


def _threshold(value: Any, at: _At) -> float | None:
    if value is None:
        return None
    if not 0.0 <= _number(value, at) <= 1.0:
        raise _Wrong("write a number from 0 to 1")
    return float(value)


def _describe_threshold(model: "Model") -> Any:
    """Return the threshold as the file has it."""
    if model.objective is None:
        return dict(model.thresholds) or model.threshold
    name, value, worth = model.objective.name, model.objective.value, model.objective.utility
    said: Any = {
        "cost": {"missed": -worth[2], "false_alarm": -worth[1]},
        "utility": dict(zip(("tp", "fp", "fn", "tn"), worth, strict=True)),
        "capacity": {"per_day": _written(int(value), _COUNTS)},
    }.get(name, value)
    by = {"by": model.by} if model.by else {}
    return name if name in _BARE else {name: said, **by}


def _address(value: Any, at: _At) -> Address:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+)):([0-9]{1,5})", value, re.ASCII) if isinstance(value, str) else None
    try:
        if found and int(found[3]) <= 65535:
            if found[1]:
                ipaddress.IPv6Address(found[1])
            elif not re.search("[^0-9.]", found[2]):
                ipaddress.IPv4Address(found[2])
            return Address(found[1] or found[2], int(found[3]))
    except ValueError:
        pass
    raise _Wrong("write host:port such as 127.0.0.1:8480 or [::1]:8480")


# Sections.


def _http(value: Any, at: _At) -> HttpSource:
    return HttpSource(**_fields(value, at, {"max_body": _amount(_SIZES, "1048576 or 32MB", 1024**3), "queue": _count}))


def _file(value: Any, at: _At) -> FileSource:
    readers = {"path": _path, "kind": _one_of(*KINDS), "follow": _flag, "format": _one_of(*FORMATS)}
    given = _fields(value, at, readers)
    if not isinstance(value, dict) or "path" not in value:
        raise _Wrong("write at least {path: FILE}", "no path")
    if "path" not in given:
        return FileSource(Path())
    source = FileSource(**given)
    if "format" not in value:
        suffix = source.path.with_suffix("").suffix if source.path.suffix == ".gz" else source.path.suffix
        formats = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv"}
        if suffix not in formats:
            raise _Wrong(f"write format: {_words(FORMATS)}", f"a path whose suffix says no format, {_show(str(source.path))}")
        source = replace(source, format=formats[suffix])
    if not source.follow and not os.path.isfile(source.path):
        at.child("path").error(
            f"found {_show(str(source.path))}, which is no file; write the path of a file or follow: true to wait for it"
        )
    return source


SOURCES: Mapping[str, Reader] = {"http": _http, "file": _file}


def _source(value: Any, at: _At) -> tuple[HttpSource | FileSource, ...]:
    if not isinstance(value, dict) or len(value) != 1:
        raise _Wrong("write one source such as http: {} or file: {path: events.ndjson}")
    ((kind, body),) = value.items()
    if isinstance(kind, str) and kind in LATER_SOURCES:
        raise _Wrong(f"not available in this version, write {_words(SOURCES)}", f"the source {kind}")
    if not isinstance(kind, str) or kind not in SOURCES:
        raise _Wrong(_did_you_mean(str(kind), SOURCES), f"the unknown source {_show(kind)}")
    return _read(SOURCES[kind], body, at.child(kind))


def _sources(value: Any, at: _At) -> tuple[HttpSource | FileSource, ...]:
    if not isinstance(value, list) or not value:
        raise _Wrong("write a list with at least one source, such as - http: {}")
    sources = tuple(source for i, item in enumerate(value) for found in _read(_source, item, at.item(i)) for source in found)
    if sum(isinstance(source, HttpSource) for source in sources) > 1:
        raise _Wrong("write it once, there is one api", "the source http more than once")
    return sources


class _Given(NamedTuple):
    tokens: tuple[tuple[str, str], ...]
    env: str = ""
    file: Path | None = None
    unread: str = ""
    exposed: bool = False


def _token(role: str) -> Reader:
    """Return the reader of the tokens of a role and where they come from; errors never show a token."""

    def read(value: Any, at: _At) -> _Given | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise _Wrong("write the token in quotes, env:NAME or file:PATH", "a value that is no string")
        if value.startswith("file:") and value != "file:":
            return _token_file(role, at.base / value.removeprefix("file:"))
        variable = value.removeprefix("env:") if value.startswith("env:") else ""
        token = os.environ.get(variable, "") if variable else value
        if variable and not token:
            raise _Wrong(f"set the environment variable {variable}", f"{_show(value)}, which is not set")
        if token == HIDDEN:
            raise _Wrong("write the token itself, env:NAME or file:PATH", f"'{HIDDEN}', which only hides a token")
        if value in ("env:", "file:") or not _TOKEN.fullmatch(token):
            raise _Wrong("write a token of printable ASCII characters without spaces, env:NAME or file:PATH", "an unusable token")
        return _Given(((role, token),), variable)

    return read


_TOKEN = re.compile(r"[\x21-\x7e]+")


def _token_file(role: str, path: Path) -> _Given:
    """Return the tokens of a file, or that it cannot be read by whoever runs this."""
    shown = _show(f"file:{path}")
    try:
        return _Given(_token_lines(role, path, shown), file=path, exposed=bool(path.stat().st_mode & 0o004))
    except PermissionError as e:
        return _Given((), file=path, unread=f"{shown}, which cannot be read ({e.strerror})")
    except OSError as e:
        raise _Wrong("write the path of a file with a token on each line", f"{shown} ({e.strerror})") from None
    except UnicodeDecodeError:
        raise _Wrong("save the file as UTF-8", f"{shown} with bytes that are not UTF-8") from None


def _token_lines(role: str, path: Path, shown: str) -> tuple[tuple[str, str], ...]:
    """Return (owner, token) of each line, which is `OWNER: TOKEN`, `OWNER TOKEN` or `TOKEN`; # begins a comment."""
    remedy = "write OWNER: TOKEN on each line, the token of printable ASCII characters without spaces"
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        words = [*takewhile(lambda word: not word.startswith("#"), line.split())]
        if not words:
            continue
        *before, token = words
        owner = before[0].removesuffix(":") if before else role
        # One word with a colon may be an owner and a token or a token alone: whoever guesses wrong locks somebody out.
        if len(before) > 1 or not NAME.fullmatch(owner) or not _TOKEN.fullmatch(token) or (not before and ":" in token):
            raise _Wrong(remedy, f"line {number} of {shown}, which is no owner and token")
        if token in found:
            raise _Wrong("give each owner a token of their own", f"line {number} of {shown} with a token that is there already")
        found[token] = owner
    if not found:
        raise _Wrong(remedy, f"{shown} without a token")
    return tuple((owner, token) for token, owner in found.items())


def _tokens(value: Any, at: _At) -> Tokens:
    if value is not None and not isinstance(value, dict):
        raise _Wrong("write a mapping with the keys ingest or decide", "a value that is no mapping")
    given = {role: g for role, g in _fields(value, at, {role: _token(role) for role in TOKENS}).items() if g is not None}
    return Tokens(
        **{role: g.tokens for role, g in given.items()},
        env={role: g.env for role, g in given.items() if g.env},
        files={role: g.file for role, g in given.items() if g.file},
        unread={role: g.unread for role, g in given.items() if g.unread},
        exposed=tuple(role for role, g in given.items() if g.exposed),
    )


# Who is told.


def _secret(value: Any, at: _At) -> str:
    """Return a secret as it is named: file:PATH, env:NAME or itself; errors never show it."""
    remedy = "write file:PATH or env:NAME of whsec_ and 24 to 64 bytes in base64"
    if not isinstance(value, str):
        raise _Wrong(remedy, "a value that is no string")
    named = f"file:{at.base / value.removeprefix('file:')}" if value.startswith("file:") else value
    try:
        secret(named)
    except SecretError as e:
        raise _Wrong(remedy, f"an unusable secret ({e})") from None
    return named


def _secrets(value: Any, at: _At) -> tuple[str, ...]:
    if not isinstance(value, list):
        return (_secret(value, at),)
    if not value:
        raise _Wrong("write at least one secret")
    return tuple(found for i, item in enumerate(value) for found in _read(_secret, item, at.item(i)))


def _url(value: Any, at: _At) -> str:
    remedy = "write a URL such as https://example.com/hook, without user and password"
    if not isinstance(value, str) or not re.fullmatch(r"https?://[!-~]+", value):
        raise _Wrong(remedy)
    try:
        parts = urlsplit(value)
        usable = parts.hostname and (parts.port is None or parts.port) and "@" not in parts.netloc and not parts.fragment
    except ValueError:
        usable = False
    if not usable:
        raise _Wrong(remedy, "an unusable URL")
    return value


def _webhook(value: Any, at: _At) -> Webhook:
    given = _fields(value, at, {"url": _url, "secret": _secrets})
    if missing := tuple(key for key in ("url", "secret") if key not in (value or {})):
        raise _Wrong("write {url: https://example.com/hook, secret: file:PATH}", f"no {_words(missing, 'and no')}")
    return Webhook(given.get("url", ""), given.get("secret", ()))


def _args(value: Any, at: _At) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise _Wrong('write a list of arguments such as [/usr/local/bin/retrain, --model, "{model}"]; there is no shell')
    for i, arg in enumerate(value):
        here = at.item(i)
        if not isinstance(arg, str) or "\0" in arg or not (arg or i):
            here.error(f"found {_show(arg)}; write a text, in quotes if it looks like a number")
            continue
        for name in PLACE.findall(arg):
            if i == 0 or name not in PLACES:
                remedy = "name a program" if i == 0 else _did_you_mean(name, PLACES)
                here.error(f"found {{{name}}}; {remedy}")
    return tuple(arg for arg in value if isinstance(arg, str))


def _target(value: Any, at: _At) -> Target:
    """Return what is called: a webhook, or a command with its limit."""
    remedy = "write webhook: {url: ..., secret: ...} or command: [...]"
    readers: dict[str, Reader] = {"webhook": _webhook, "command": _args, "limit": _some_time}
    given = _fields(value, at, readers, remedy)
    kinds = [key for key in ("webhook", "command") if key in (value or {})]
    if len(kinds) == 2 or (value or {}).keys() <= {"limit"}:
        raise _Wrong(remedy, "both of webhook and command" if kinds else "neither webhook nor command")
    if "webhook" in kinds and "limit" in value:
        at.child("limit").error("found it with a webhook, which has 15 s; leave it out")
    if "webhook" in kinds:
        hook: Webhook = given.get("webhook", Webhook("", ()))
        return hook
    return Command(given.get("command", ()), given.get("limit", Command(()).limit))


def _deliver(value: Any, at: _At) -> tuple[Target, ...]:
    if not isinstance(value, list):
        raise _Wrong("write a list such as [{command: [/usr/local/bin/publish]}], or []")
    return tuple(target for i, item in enumerate(value) for target in _read(_target, item, at.item(i)))


def _actions(value: Any, at: _At) -> dict[str, Target]:
    found = {}
    for name, body in _mapping(value, at, "write a mapping such as {retrain: {command: [/usr/local/bin/retrain]}}").items():
        here = at.child(name)
        if name in (*ACTIONS, DELIVER):
            here.error(f"found {name!r}, which is the agent's own; write another name")
        elif _read(_name, name, here):
            for target in _read(_target, body, here):
                found[name] = target
    return found


def _action(value: Any, at: _At) -> str:
    """Return the action of a rule; whether it is a configured one shows when the whole file is seen."""
    if not isinstance(value, str):
        raise _Wrong(f"write {_words((*ACTIONS, 'the name of one of actions'))}")
    return value


def _waiting(value: Any, at: _At) -> int:
    given = _fields(value, at, {"rows": _amount(_COUNTS, "20M", MOST_ROWS)})
    return int(given.get("rows", Config().waiting_rows))


_UNSAID = VerdictLabels(-1, "")
"""An entry by verdict while the file is read: what it leaves out follows the model, which may still override `defaults`."""


def _verdicts(before: Mapping[str, VerdictLabels]) -> Reader:
    def entry(verdict: str) -> Reader:
        readers = {"horizon": _verdict_horizon, "missing": _one_of(*MISSING)}
        return lambda value, at: replace(before.get(verdict, _UNSAID), **_fields(value, at, readers))

    readers = {verdict: entry(verdict) for verdict in VERDICTS[:NONE]}
    remedy = "write a mapping such as {block: {horizon: never}}"
    return lambda value, at: {**before, **_fields(value, at, readers, remedy)}


def _labels(before: Labels) -> Reader:
    readers = {
        "horizon": _horizon,
        "missing": _one_of(*MISSING),
        "corrections": _duration,
        "verdicts": _verdicts(before.verdicts),
    }
    return lambda value, at: replace(before, **_fields(value, at, readers))


def _said(labels: Labels) -> Labels:
    """Return labels whose entries by verdict say what they left out."""
    return replace(
        labels,
        verdicts={
            verdict: VerdictLabels(labels.horizon if v.horizon == _UNSAID.horizon else v.horizon, v.missing or labels.missing)
            for verdict, v in labels.verdicts.items()
        },
    )


def _review(before: int) -> Reader:
    def read(value: Any, at: _At) -> int:
        if value == "off":
            return 0
        given = _fields(value, at, {"per_day": _count}, "write off or a mapping such as {per_day: 200}")
        return int(given.get("per_day", before))

    return read


def _recalibrate(before: Recalibrate) -> Reader:
    readers = {"rows": _count, "limit": _some_time, "undo": _flag}
    return lambda value, at: replace(before, **_fields(value, at, readers))


def _per_day(value: Any, at: _At) -> int | None:
    return None if value is None else int(_expected(value, at))


def _versions(value: Any, at: _At) -> dict[str, str]:
    roles = {}
    for version, role in _mapping(value, at, "write a mapping such as {v8: shadow}").items():
        here = at.child(version)
        for name in _read(_name, version, here):
            for known in _read(_one_of(*ROLES), role, here):
                roles[name] = known
    return roles


def _names(what: str, example: str, most: int | None = None) -> Reader:
    """Return a reader of a list of different names."""

    def read(value: Any, at: _At) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise _Wrong(f"write a list such as {example}")
        names = [name for i, item in enumerate(value) for name in _read(_name, item, at.item(i))]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            raise _Wrong(f"write each {what} once", f"{_show(name)} more than once")
        if most is not None and len(names) > most:
            raise _Wrong(f"write at most {most} names", f"{len(names)} names")
        return tuple(names)

    return read


def _classes(value: Any, at: _At) -> tuple[str, ...]:
    names: tuple[str, ...] = _names("class", "[cat, dog, other]", MOST_CLASSES)(value, at)
    if len(value) < 2:
        raise _Wrong(f"write 2 to {MOST_CLASSES} names", f"{len(value)} classes")
    return names


def _tolerance(value: Any, at: _At) -> float:
    if not 0.0 <= _number(value, at) < 0.5:
        raise _Wrong("write how far from 1 the scores of an event may sum, such as 0.005")
    return float(value)


# Rules.


def _bounds(value: Any, at: _At) -> dict[str, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise _Wrong("write two numbers such as [0.8, 1.2]")
    pair = [number for i, item in enumerate(value) for number in _read(_number, item, at.item(i))]
    if len(pair) == 2 and pair[0] >= pair[1]:
        raise _Wrong("write the smaller number first", f"[{value[0]}, {value[1]}]")
    return {"low": pair[0], "high": pair[1]} if len(pair) == 2 else {}


_SIDES: Mapping[str, Reader] = {
    "above": lambda value, at: {"high": _number(value, at)},
    "below": lambda value, at: {"low": _number(value, at)},
    "outside": _bounds,
    "inside": lambda value, at: {**_bounds(value, at), "inside": True},
}


def _limit(value: Any, at: _At) -> dict[str, Any]:
    """Return the fields of a Limit that the mapping gives."""
    remedy = f"write a mapping with one of {_words(tuple(_SIDES))}, such as {{above: 0.05}}"
    given = _fields(value, at, {**_SIDES, "end": _one_of("value", "low", "high")}, remedy)
    sides = [side for side in _SIDES if side in (value or {})]
    if len(sides) != 1 and (sides or (value or {}).keys() <= {"end"}):
        raise _Wrong(f"write exactly one of {_words(tuple(_SIDES))}", _words(tuple(sides), "and") if sides else "no limit")
    return {**(given.get(sides[0], {}) if sides else {}), **({"end": given["end"]} if "end" in given else {})}


def _metric(value: Any, at: _At) -> str:
    names = (*METRICS, *OWN_READING)
    if not isinstance(value, str) or value not in names:
        raise _Wrong(_did_you_mean(value, names) if isinstance(value, str) else f"write {_words(names)}")
    return value


_RULE: Mapping[str, Reader] = {
    "detector": _one_of(*SHOWN),
    "metric": _metric,
    "basis": _one_of(*RULE_WINDOWS),
    "window": _one_of(*RECENT, *MATURE),
    "fires": _limit,
    "resolves": _limit,
    "min_n": _count,
    "hold": _duration,
    "severity": _one_of(*SEVERITIES),
    "action": _action,
}


def _rule(name: str, old: Rule | None) -> Reader:
    """Return a reader of what a rule changes in `old`, or of a whole new rule."""

    def read(value: Any, at: _At) -> Rule | None:
        errors = len(at.errors)
        given = _fields(value, at, _RULE, f"write off or a mapping with the keys {_words(_RULE)}")
        raw = value or {}
        if (old and old.detector) or "detector" in raw:
            return _detector_rule(name, old, given, at) if len(at.errors) == errors else None
        was = old.fires[0].metric if old else ""
        metric = given.get("metric", was)
        # Limits are numbers of one metric, so they do not survive a change of the metric.
        kept = old if metric == was else None
        required = () if kept else ("fires", "resolves") if old else ("metric", "fires", "resolves")
        missing = tuple(key for key in required if key not in raw)
        if missing:
            near = [] if old else difflib.get_close_matches(name, list(SHIPPED), n=1)
            hint = f" (or did you mean {near[0]}?)" if near else ""
            at.error(f"found a new {'metric' if old else 'rule'} without {_words(missing, 'and')}; write them, too{hint}")
        basis = given.get("basis", OWN_READING[metric][0] if metric in OWN_READING else old.basis if old else "mature")
        usual = OWN_READING[metric][1] if metric in OWN_READING else RULE_WINDOW[basis]
        window = given.get("window", old.window if old and old.basis == basis else usual)
        if not {"metric", "basis", "window"} & (raw.keys() - given.keys()):
            _check_reading(at, given, metric, basis, window, was)
        action = given.get("action", kept.action if kept else "none")
        if action != "none" and basis not in ACTING:
            at.child("action").error(f"found {action!r} with the basis {basis}; write a basis that may act: {_words(ACTING)}")
        if len(at.errors) > errors:
            return None
        fires = _merge(metric, given.get("fires"), kept.fires[0] if kept else None)
        resolves = _merge(metric, given.get("resolves"), kept.resolves if kept else None)
        if _overlap(fires, resolves):
            raise _Wrong(
                "write fires and resolves that no value passes together", "limits that fire and resolve at the same value"
            )
        same = {key: given[key] for key in ("min_n", "hold", "severity") if key in given} | {"action": action}
        return replace(
            old or Rule(name, basis, window, (fires,), resolves, 500),
            basis=basis,
            window=window,
            fires=(fires,),
            resolves=resolves,
            **same,
        )

    return read


def _detector_rule(name: str, old: Rule | None, given: Mapping[str, Any], at: _At) -> Rule | None:
    """Return the rule of a detector as changed by what is given."""
    if old is not None and given.get("detector", old.detector) != old.detector:
        at.child("detector").error(f"found {given['detector']!r}; leave it out here and write a rule of another name")
        return None
    rule = old or detecting(name, given["detector"])
    wrong = [key for key in ("metric", "basis", "window", "min_n") if key in given]
    for key in wrong:
        at.child(key).error(f"found {given[key]!r} in a rule with a detector, which looks at whole days by itself; leave it out")
    if wrong:
        return None
    effect = rule.fires[0].metric
    fires = _merge(effect, given.get("fires"), rule.fires[0])
    resolves = _merge(effect, given.get("resolves"), rule.resolves)
    if _overlap(fires, resolves):
        raise _Wrong("write fires and resolves that no value passes together", "limits that fire and resolve at the same value")
    same = {key: given[key] for key in ("hold", "severity", "action") if key in given}
    return replace(rule, fires=(fires, *rule.fires[1:]), resolves=resolves, **same)


def _check_reading(at: _At, given: Mapping[str, Any], metric: str, basis: str, window: str, was: str) -> None:
    """Note what cannot be read together: a metric, the basis it is computed on and the window."""
    if was in OWN_READING and metric != was:
        at.child("metric").error(f"found {metric!r}; leave it out here and write a rule of another name")
    elif metric in OWN_READING:
        for key, fixed in zip(("basis", "window"), OWN_READING[metric], strict=True):
            if given.get(key, fixed) != fixed:
                at.child(key).error(f"found {given[key]!r}; write {fixed} or leave it out, {metric} has no other")
    elif basis == "scored" and metric in METRICS and METRICS[metric].outcomes:
        at.child("basis").error(f"found 'scored' with the metric {metric}, which needs outcomes; write mature")
    elif window not in RULE_WINDOWS[basis]:
        at.child("window").error(f"found {window!r} with the basis {basis}; write {_words(RULE_WINDOWS[basis])}")


def _merge(metric: str, given: dict[str, Any] | None, kept: Limit | None) -> Limit:
    """Return the limit that is given, at the end of the kept one unless it names its own; else the kept one."""
    if kept and not given:
        return kept
    return Limit(metric, **{"end": kept.end if kept else "value", **(given or {})})


def _overlap(a: Limit, b: Limit) -> bool:
    """Return whether some value passes both limits; limits of different ends cannot be compared."""
    edges = sorted(x for limit in (a, b) for x in (limit.low, limit.high) if x is not None)
    between = [(x + y) / 2 for x, y in pairwise(edges)]
    return a.end == b.end and any(a.passed(x) and b.passed(x) for x in (-math.inf, *edges, *between, math.inf))


def _rules(before: tuple[Rule, ...]) -> Reader:
    def read(value: Any, at: _At) -> tuple[Rule, ...]:
        rules: dict[str, Rule] = {rule.name: rule for rule in before}
        for name, body in _mapping(value, at, "write a mapping such as {calibration: off}").items():
            here = at.child(name)
            known = rules.get(name, SHIPPED.get(name))
            if not _read(_name, name, here):
                continue
            if body == "off":
                if known is None:
                    here.error(f"found 'off' for an unknown rule; {_did_you_mean(name, {**SHIPPED, **rules})}")
                rules.pop(name, None)
            else:
                for rule in filter(None, _read(_rule(name, known), body, here)):
                    rules[name] = rule
        for name in [rule.name for rule in rules.values() if rule.detector == "canary"][1:]:
            at.child(name).error("found a second rule with the detector canary; change that one, or write off for it")
        order = list(SHIPPED)
        return tuple(sorted(rules.values(), key=lambda rule: order.index(rule.name) if rule.name in SHIPPED else len(order)))

    return read


# Models and the whole.


def _false_alarms(before: Mapping[str, float]) -> Reader:
    def some(value: Any, at: _At) -> float:
        number = _number(value, at)
        if not 0.001 <= number <= 365:
            raise _Wrong("write how many false alarms a year are acceptable, from 0.001 to 365")
        return number

    readers = dict.fromkeys(SEVERITIES, some)
    remedy = "write a mapping such as {critical: 0.25, warning: 4}"
    return lambda value, at: {**before, **_fields(value, at, readers, remedy)}


def _shared(before: Model) -> dict[str, Reader]:
    """Return the readers of what `defaults` and a model may both give."""
    return {
        "mode": _one_of(*MODES),
        "recalibrate": _recalibrate(before.recalibrate),
        "follow_within": _some_time,
        "labels": _labels(before.labels),
        "review": _review(before.review),
        "deliver": _deliver,
        "idle_after": _some_time,
        "false_alarms_per_year": _false_alarms(before.false_alarms),
        "rules": _rules(before.rules),
    }


def _given(before: Model, fields: dict[str, Any]) -> Model:
    """Return the model with what a section gives."""
    if "false_alarms_per_year" in fields:
        fields["false_alarms"] = fields.pop("false_alarms_per_year")
    model = replace(before, **fields)
    if model.score == "margin":
        model = replace(model, rules=tuple(r for r in model.rules if r.detector not in OF_PROBABILITIES))
    return replace(model, rules=budgeted(model.rules, model.false_alarms))


def _defaults(value: Any, at: _At) -> Model:
    return _given(Model(""), _fields(value, at, _shared(Model(""))))


def _misplaced(value: Any, at: _At) -> None:
    raise _Wrong("write waiting at the top of the file, it is for all models together")


def _model(defaults: Model) -> Reader:
    readers: dict[str, Reader] = {
        "versions": _versions,
        "baseline": _baseline,
        "policies": _folder,
        "segments": _names("segment", "[country, channel]"),
        "features": _names("feature", "[amount, channel]", FEATURES),
        "threshold": _thresholds,
        "per_day": _per_day,
        "classes": _classes,
        "labels_mode": _one_of(*LABELS_MODES),
        "score": _one_of(*SCORES),
        "sum_tolerance": _tolerance,
        "waiting": _misplaced,
        **_shared(defaults),
    }
    remedy = f"write {{}} or a mapping with the keys {_words(tuple(key for key in readers if key != 'waiting'))}"

    def read(value: Any, at: _At) -> Model:
        given = _fields(value, at, readers, remedy)
        if isinstance(given.get("threshold"), dict):
            given["thresholds"] = given.pop("threshold")
        elif isinstance(given.get("threshold"), tuple):
            given["objective"], given["by"] = given.pop("threshold")
        found = _given(defaults, given)
        if found.classes:
            _check_classes(at, found, given)
        elif not isinstance(value, dict) or "classes" not in value:
            _check_binary(at, found, given)
        return found

    return read


def _check_classes(at: _At, model: Model, given: Mapping[str, Any]) -> None:
    """Note what does not go together with the classes of a model."""
    single = model.labels_mode == "single"
    if single and TOP in model.classes:
        at.child("classes").error(f"found {TOP!r}, which names the target of the predicted class; write another name for it")
    for name in model.thresholds:
        if name not in model.classes:
            at.child("threshold").child(name).error(f"found no such class; {_did_you_mean(name, model.classes)}")
    if model.score == "margin":
        at.child("score").error("found 'margin' with classes; write probability or logit")
    if not single and "sum_tolerance" in given:
        at.child("sum_tolerance").error("found it with labels_mode multi, whose scores need not sum to 1; leave it out")
    if model.features:
        at.child("features").error("found features with classes; leave them out, only those of binary models are kept")
    if model.review:
        at.child("review").error("found a review of a model with classes; write off, only binary models are reviewed")
    if single and "negative" in (model.labels.missing, *(v.missing for v in model.labels.verdicts.values())):
        at.child("labels").error("found missing: negative with classes of which one is right; write missing: unknown")


def _check_binary(at: _At, model: Model, given: Mapping[str, Any]) -> None:
    """Note what only a model with classes may have."""
    if model.baseline is not None and at.built and not os.path.isfile(model.baseline):
        at.child("baseline").error(f"found {_show(str(model.baseline))}, which is no file; write the path of a baseline")
    if model.thresholds:
        at.child("threshold").error(
            f"found a mapping without classes; write a number from 0 to 1 or one objective of {_words((*_OBJECTIVES, *_BARE))}"
        )
    if model.by and model.by not in model.segments:
        remedy = _did_you_mean(model.by, model.segments) if model.segments else "write segments, too"
        at.child("threshold").child("by").error(f"found {model.by!r}, which is none of the segments; {remedy}")
    for key in ("labels_mode", "sum_tolerance"):
        if key in given:
            at.child(key).error("found it without classes; write classes, too, or leave it out")
    if model.score == "margin" and (model.threshold is not None or model.objective is not None):
        at.child("threshold").error("found a threshold with score margin, which is no probability; leave it out")


def _models(defaults: Model) -> Reader:
    def read(value: Any, at: _At) -> dict[str, Model]:
        models: dict[str, Model] = {}
        for name, body in _mapping(value, at, "write at least one model such as fraud: {}").items():
            here = at.child(name)
            for model in _read(_model(defaults), body, here) if _read(_name, name, here) else ():
                others = value.keys() | _watched(models).keys()
                models[name] = replace(model, name=name, labels=_said(model.labels))
                if model.classes:
                    _check_parent(here, models[name], others)
        if not value:
            raise _Wrong("write at least one model such as fraud: {}", "no model")
        folders: dict[str, str] = {}
        for key in ("baseline", "policies") if "*" in models else ():
            if (found := getattr(models["*"], key)) is not None:
                at.child("*").child(key).error(
                    f"found {_show(str(found))}; write it at a model of its own, '*' stands for any number of models"
                )
        for name, model in models.items():
            if model.policies is not None:
                first = folders.setdefault(os.path.realpath(model.policies), name)
                if first != name:
                    other = at.child(first).key
                    at.child(name).child("policies").error(
                        f"found {_show(str(model.policies))}, the folder of {other}, too; write a folder for each model"
                    )
        return models

    return read


def _check_parent(at: _At, model: Model, others: Collection[str]) -> None:
    """Note what is wrong with the targets of a model with classes; `others` are the names of the other models and targets."""
    if model.name == "*":
        at.child("classes").error("found classes at '*', which stands for any model; write them at a model of its own")
    for name, target in model.targets.items():
        if target.name in others:
            at.child("classes").error(f"found {name!r}, whose target is called {target.name!r} as another model is; rename one")
        elif not NAME.fullmatch(target.name):
            at.child("classes").error(f"found {name!r}, with which {target.name!r} is too long; write a shorter name")
        if target.baseline is not None and at.built and not os.path.isfile(target.baseline):
            at.child("baseline").error(f"found no file {_show(str(target.baseline))}; write a folder with one for each target")


def _watched(models: Mapping[str, Model]) -> dict[str, Model]:
    """Return the binary models: targets in the place of a model with classes."""
    return {m.name: m for model in models.values() for m in (model.targets.values() if model.classes else (model,))}


def load(path: Path, serving: bool = False, built: bool = True) -> Config:
    """Return the configuration of a file; relative paths in it are relative to its folder.

    For `serving` all of its tokens must be readable; commands may go without. Baselines need not be `built` for whoever builds
    them.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except OSError as e:
        raise ConfigError(f"{path}: found no readable file ({e.strerror}); write the path of a configuration file") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: found bytes that are not UTF-8 at position {e.start}; save the file as UTF-8") from None
    digest = hashlib.sha256(raw).hexdigest()
    config = replace(parse(text, str(path), path.absolute().parent, built), path=path, digest=digest)
    if serving and (unread := config.tokens.unread):
        readable = "let the agent's user read it"
        raise ConfigError("\n".join(f"{path}: tokens.{role}: found {what}; {readable}" for role, what in unread.items()))
    return config


def parse(text: str, where: str, base: Path, built: bool = True) -> Config:
    """Return the configuration in a text; raise ConfigError with every error of it, one line each, `where` first."""
    at = _At(where, base, [], built=built)
    tree = _tree(text, at)
    defaults = Model("")
    if isinstance(tree, dict):
        # Models start from the defaults, wherever in the file these stand.
        for read in _read(_defaults, tree.get("defaults"), at.child("defaults")):
            defaults = read
    readers: dict[str, Reader] = {
        "state": _path,
        "api": _address,
        "metrics": _address,
        "clock": _one_of(*CLOCKS),
        "tick": _some_time,
        "sources": _sources,
        "tokens": _tokens,
        "actions": _actions,
        "defaults": lambda value, at: defaults,
        "models": _models(defaults),
        "hash": _one_of(*HASHES),
        "waiting": _waiting,
    }
    for given in _read(lambda value, at: _fields(value, at, readers, "write a mapping such as models: {fraud: {}}"), tree, at):
        _check(at, tree or {}, given)
        if not at.errors:
            given.pop("defaults", None)
            if "waiting" in given:
                given["waiting_rows"] = given.pop("waiting")
            given["parents"] = {name: model for name, model in given["models"].items() if model.classes}
            given["models"] = _watched(given["models"])
            return Config(**{"tick": TICKS[given.get("clock", Config().clock)], **given})
    raise ConfigError("\n".join(at.errors))


def _check(at: _At, tree: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Note what only shows when the whole file is seen."""
    if "models" not in tree:
        at.child("models").error("found nothing; write at least one model such as fraud: {}")
    if given.get("clock") == "events" and DAY % given.get("tick", HOUR):
        at.child("tick").error(f"found {tree['tick']!r}, which does not divide a day; write one that does, such as 1h")
    named = tree.get("actions")
    actions = (*ACTIONS, *(str(name) for name in named)) if isinstance(named, dict) else ACTIONS
    for place, name in _rule_actions(at, tree):
        if name not in actions:
            place.error(f"found {name!r}; {_did_you_mean(name, actions)}")
    tokens = tree.get("tokens") or {}
    if "api" in given and not given["api"].loopback and isinstance(tokens, dict):
        missing = tuple(f"tokens.{key}" for key in TOKENS if tokens.get(key) is None)
        if missing:
            at.child("api").error(
                f"found {str(given['api'])!r}, which other machines reach, without {_words(missing, 'and')}; "
                "set tokens.ingest and tokens.decide or listen on 127.0.0.1"
            )


def _rule_actions(at: _At, tree: Mapping[str, Any]) -> Iterator[tuple[_At, str]]:
    """Yield where a rule names its action, and the name."""
    models = tree.get("models")
    places = [(at.child("defaults"), tree.get("defaults"))]
    places += [(at.child("models").child(name), body) for name, body in models.items()] if isinstance(models, dict) else []
    for place, body in places:
        rules = body.get("rules") if isinstance(body, dict) else None
        for rule, said in rules.items() if isinstance(rules, dict) else ():
            if isinstance(said, dict) and isinstance(said.get("action"), str):
                yield place.child("rules").child(rule).child("action"), said["action"]


FIXED = ("state", "api", "metrics", "clock", "hash")
"""Keys that only another start can change."""


def fixed(before: Config, after: Config) -> list[str]:
    """Return what a running agent cannot change, one message each with file, key, what was found and what to do."""
    keys = (*FIXED, *(("tick",) if before.clock == "events" else ()))
    was, now = effective(before), effective(after)
    return [
        f"{after.path}: {key}: found {_show(now[key])}, and the agent runs with {_show(was[key])}; write that, or start it anew"
        for key in keys
        if was[key] != now[key]
    ]


def describe(config: Config, secrets: bool = False) -> str:
    """Return the effective configuration as YAML with every default visible; tokens of the file only with `secrets`."""
    tree = effective(config, secrets)
    return yaml.dump(tree, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=math.inf)


def effective(config: Config, secrets: bool = False) -> dict[str, Any]:
    """Return what `describe` writes as mappings, lists and scalars."""
    tokens = {role: config.tokens.first(role) for role in TOKENS}
    shown = {role: token if secrets or token is None else HIDDEN for role, token in tokens.items()}
    shown |= {role: f"env:{name}" for role, name in config.tokens.env.items()}
    shown |= {role: f"file:{path}" for role, path in config.tokens.files.items()}
    return {
        "state": str(config.state),
        "api": str(config.api),
        "metrics": str(config.metrics),
        "clock": config.clock,
        "tick": written_duration(config.tick),
        "sources": [_describe_source(source) for source in config.sources],
        "tokens": shown,
        "actions": {name: _describe_target(target, secrets) for name, target in config.actions.items()},
        "models": {name: _describe_model(model, secrets) for name, model in config.named.items()},
        "hash": config.hash,
        "waiting": {"rows": _written(config.waiting_rows, _COUNTS)},
    }


def _written(n: int, units: Mapping[str, int], zero: str = "0") -> str | int:
    """Return a number in the largest of the units that divides it."""
    for unit, size in sorted(units.items(), key=lambda item: -item[1]):
        if n and n % size == 0:
            return f"{n // size}{unit}"
    return n or zero


def written_duration(ms: int) -> str:
    """Return a duration in ms as the file writes it."""
    return str(_written(ms, _UNITS, "0s"))


def _describe_source(source: HttpSource | FileSource) -> dict[str, Any]:
    match source:
        case HttpSource(max_body, queue):
            return {"http": {"max_body": _written(max_body, _SIZES), "queue": _written(queue, _COUNTS)}}
        case FileSource(path, kind, follow, format):
            return {"file": {"path": str(path), "kind": kind, "follow": follow, "format": format}}


def _describe_target(target: Target, secrets: bool) -> dict[str, Any]:
    match target:
        case Webhook(url, given):
            shown = [s if secrets or s.startswith(("file:", "env:")) else HIDDEN for s in given]
            return {"webhook": {"url": url, "secret": shown}}
        case Command(args, limit):
            return {"command": list(args), "limit": written_duration(limit)}


def _describe_model(model: Model, secrets: bool) -> dict[str, Any]:
    return {
        **_describe_classes(model),
        "versions": dict(model.versions),
        "baseline": model.baseline and str(model.baseline),
        "policies": model.policies and str(model.policies),
        "segments": list(model.segments),
        "features": list(model.features),
        "labels": _describe_labels(model.labels),
        "threshold": _describe_threshold(model),
        "score": model.score,
        "per_day": model.per_day and _written(model.per_day, _COUNTS),
        "mode": model.mode,
        "recalibrate": {
            "rows": _written(model.recalibrate.rows, _COUNTS),
            "limit": written_duration(model.recalibrate.limit),
            "undo": model.recalibrate.undo,
        },
        "follow_within": written_duration(model.follow_within),
        "review": {"per_day": _written(model.review, _COUNTS)} if model.review else "off",
        "false_alarms_per_year": dict(model.false_alarms),
        "rules": {**dict.fromkeys(SHIPPED, "off"), **{rule.name: _describe_rule(rule) for rule in model.rules}},
        "deliver": [_describe_target(target, secrets) for target in model.deliver],
        "idle_after": written_duration(model.idle_after),
    }


def _describe_classes(model: Model) -> dict[str, Any]:
    """Return the keys that only a model with classes has."""
    if not model.classes:
        return {}
    tolerance = {"sum_tolerance": model.sum_tolerance} if model.labels_mode == "single" else {}
    return {"classes": list(model.classes), "labels_mode": model.labels_mode, **tolerance}


def _describe_labels(labels: Labels) -> dict[str, Any]:
    return {
        "horizon": written_duration(labels.horizon),
        "missing": labels.missing,
        "corrections": written_duration(labels.corrections),
        "verdicts": {
            verdict: {"horizon": "never" if v.horizon is None else written_duration(v.horizon), "missing": v.missing}
            for verdict, v in labels.verdicts.items()
        },
    }


def _describe_rule(rule: Rule) -> dict[str, Any]:
    fires = rule.fires[0]
    if rule.detector:
        return {
            "detector": rule.detector,
            "fires": _describe_limit(fires),
            "resolves": _describe_limit(rule.resolves),
            "hold": written_duration(rule.hold),
            "severity": rule.severity,
            "action": rule.action,
        }
    return {
        "metric": fires.metric,
        "basis": rule.basis,
        "window": rule.window,
        "fires": _describe_limit(fires),
        "resolves": _describe_limit(rule.resolves),
        "min_n": rule.min_n,
        "hold": written_duration(rule.hold),
        "severity": rule.severity,
        "action": rule.action,
    }


def _describe_limit(limit: Limit) -> dict[str, Any]:
    if limit.low is None:
        return {"above": limit.high, "end": limit.end}
    if limit.high is None:
        return {"below": limit.low, "end": limit.end}
    return {"inside" if limit.inside else "outside": [limit.low, limit.high], "end": limit.end}
