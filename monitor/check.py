"""What `scorewatch check` says beside the configuration: the plan of rows, disk and memory, and whether it can fit."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from monitor.config import MOST_ROWS, Config, Model, key_path, written_duration
from monitor.core import power
from monitor.core.baseline import Baseline
from monitor.core.detectors import nulls
from monitor.core.events import DAY
from monitor.core.policy import policy as compose
from monitor.core.power import Plan
from monitor.core.sampling import LEAST
from monitor.core.sizing import ENOUGH, PROCESS_BYTES, Load, Share, Sizing, size

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Room:
    """What there is, in bytes: disk for the state, of which `taken` is its own already, and memory; None where unknown."""

    disk: int | None
    taken: int
    memory: int | None


def size_of(config: Config) -> Sizing:
    """Return what the models of a configuration need."""
    models = config.named.values()
    loads = [Load(m.name, m.per_day, m.labels.longest, m.labels.corrections, len(m.targets) or 1) for m in models]
    return size(loads, config.waiting_rows)


def room_of(state: Path) -> Room:
    """Return the disk that a state directory has, whether it exists or not, and the memory that this process may use."""
    taken, disk = 0, None
    try:
        there = next(p for p in (state.absolute(), *state.absolute().parents) if p.exists())
        files = [*state.glob("rows*.bin"), *state.glob("labels*.bin")]
        taken = sum(f.stat().st_blocks * 512 for f in files)
        disk = shutil.disk_usage(there).free + taken
    except OSError:  # a state that only the agent's user may look into
        pass
    return Room(disk, taken, memory_limit(CGROUP, Path("/proc/self/cgroup")))


def memory_limit(root: Path, membership: Path) -> int | None:
    """Return the bytes of memory that the control groups (version 2) of this process allow, None when they name no limit."""
    try:
        paths = [line.removeprefix("0::/") for line in membership.read_text().splitlines() if line.startswith("0::/")]
    except OSError:
        return None
    limits = []
    for folder in [folder for path in paths for folder in (root / path, *(root / path).parents) if folder.is_relative_to(root)]:
        try:
            limits.append(int((folder / "memory.max").read_text()))
        except (OSError, ValueError):  # no such file at the root, or `max`
            pass
    return min(limits, default=None)


def misfits(config: Config, sizing: Sizing, room: Room) -> list[str]:
    """Return what cannot fit, one message each with file, key path, what was found and the ways out."""
    return [f"{config.path}: {key}: found {text}; write {ways}" for key, text, ways in _misfits(config, sizing, room)]


def _misfits(config: Config, sizing: Sizing, room: Room) -> Iterator[tuple[str, str, str]]:
    shorter = "a shorter labels.horizon or labels.corrections"
    fewer = f"a smaller waiting.rows (then a sample waits) or {shorter}"
    kinds = (
        ("disk", sizing.least_disk, room.disk, f"where {config.state} can have", "give the state a larger disk"),
        ("memory", sizing.least_memory, room.memory, "where the container is allowed", "allow more memory"),
    )
    for kind, need, there, where, larger in kinds:
        if there is not None and need > there:
            text = f"{about(sizing.sure)} rows that wait and need {about(need)}B of {kind}, {where} {about(there)}B"
            yield _cause(sizing), text, f"{fewer}, {larger}, or run one agent per model, each with {kind} of its own"
    more = "a larger waiting.rows, " if sizing.limit < MOST_ROWS else ""
    if sizing.sure > sizing.limit:
        text = f"{about(sizing.limit)}, fewer than the {about(sizing.sure)} that wait when {LEAST:g} of each kind of score does"
        yield "waiting.rows", text, f"{more}{shorter}, or run one agent per model"
    for s in sizing.shares:
        if s.starved:
            stay = f"wait {s.days:g} days within waiting.rows {about(sizing.limit)}"
            text = f"{about(s.per_day or 0)}, of which only {about(s.waiting_per_day)} can {stay}, fewer than {about(ENOUGH)}"
            yield key_path("models", s.model, "per_day"), text, f"{more}{shorter}, or run one agent per model"


def _cause(sizing: Sizing) -> str:
    """Return the key that decides how many rows wait."""
    if any(s.sampled for s in sizing.shares):
        return "waiting.rows"
    return key_path("models", max(sizing.shares, key=lambda s: s.rows).model, "per_day")


def lines(config: Config, sizing: Sizing, room: Room) -> list[str]:
    """Return the plan for a person; no line has a character that would break it."""
    low, high = sizing.index
    most = ", the most that may wait" if sizing.rows > sizing.sure else ""
    disk = "free space unknown" if room.disk is None else f"{about(room.disk)}B free or taken by it"
    if room.disk is not None and room.disk < sizing.disk:
        disk += ", too little for so many rows"
    memory = "no limit found" if room.memory is None else f"{about(room.memory)}B allowed"
    if room.memory is not None and room.memory < high + PROCESS_BYTES:
        memory += ", which may be too little"
    out = ["Plan", *(line for s in sizing.shares for line in _model_lines(s)), "all models"]
    out += [
        f"  rows: {about(sizing.rows)} of waiting.rows {about(sizing.limit)}{most}",
        f"  disk: {about(sizing.disk)}B for rows and labels, about {about(sizing.log)}B a year for the log, more with segments",
        f"    {config.state}: {disk}",
        f"  memory: {about(low)}B to {about(high)}B for the index, about {about(PROCESS_BYTES)}B for the process",
        f"    {memory}; pages of the mapped files come on top, the system takes them back when it needs them",
    ]
    return [line if line.isprintable() else repr(line)[1:-1] for line in out]


def _model_lines(s: Share) -> Iterator[str]:
    yield s.model
    if s.targets > 1:
        yield f"  a prediction is {s.targets} rows, one for each of its targets"
    yield f"  a row stays {s.days:g} days: the longest horizon, the corrections, and its own day"
    if s.per_day is None:
        yield "  rows: unknown; write per_day, how many predictions a day are expected"
    elif s.sampled:
        part = f"of {about(s.per_day)} a day {about(s.waiting_per_day)} wait ({100 * (s.share or 0):.3g} %)"
        yield f"  rows: {about(s.rows)} of {about(s.per_day * s.days)}: {part}"
        yield "    flagged ones and those near the threshold first; estimates weight them and stay unbiased"
    else:
        yield f"  rows: {about(s.rows)}, all of {about(s.per_day)} a day wait"
    yield f"  first outcomes: {written_duration(s.first)} after the first day has ended"


def seen(model: Model, baseline: Baseline, runs: int = 12) -> Plan:
    """Return what of the changes of a model can be seen when, simulated from its baseline; without per_day at that volume.

    Raises ValueError when the baseline has no rows, or neither it nor the model says how many there are a day.
    """
    whole, threshold = baseline.table("all"), 1.0 if model.threshold is None else model.threshold
    if not whole.n:
        raise ValueError(f"the baseline of {baseline.model} {baseline.version} has no rows")
    if not (model.per_day or baseline.timed):
        raise ValueError(f"the rows of the baseline have no times; write models.{model.name}.per_day")
    per_day = model.per_day or round(whole.n / len(baseline.days["all"]))
    policy = None if model.threshold is None else compose("", model.name, baseline.version, {"all": model.threshold})
    expected = nulls(baseline.days, policy, model.labels.rules, baseline.promises)
    limits = {r.detector: r.fires[1].high or 0.0 for r in model.rules if r.detector}
    population, horizon = power.observed(whole, threshold), model.labels.longest / DAY
    return power.plan(population, per_day, horizon, expected, model.labels.rules, limits, np.random.default_rng(0), runs)


def baselines(config: Config, read: Callable[[Model], Baseline]) -> tuple[dict[str, Baseline], list[str]]:
    """Return the baselines by model, and what is wrong with those that `read` refuses with a ValueError."""
    found: dict[str, Baseline] = {}
    wrong: list[str] = []
    for name, m in config.models.items():
        try:
            found |= {name: read(m)} if m.baseline else {}
        except ValueError as e:
            wrong.append(str(e))
    return found, wrong


def sights(config: Config, promised: Mapping[str, Baseline], progress: Callable[[str], None]) -> dict[str, Plan | str]:
    """Return what can be seen when by model, or why nobody knows; `promised` are the baselines.

    A model is left out that has neither per_day nor a baseline, or one that cannot be read.
    """
    models = [m for name, m in config.models.items() if name in promised or (m.per_day and not m.baseline)]
    runs = 12 if len(models) < 3 else 5
    found: dict[str, Plan | str] = {}
    for m in models:
        progress(f"what can be seen of {m.name} when")
        if m.name not in promised:
            found[m.name] = "write `baseline`: what can be seen depends on the scores and outcomes of validation"
            continue
        try:
            found[m.name] = seen(m, promised[m.name], runs)
        except ValueError as e:
            found[m.name] = str(e)
    return found


def seen_lines(found: Mapping[str, Plan | str]) -> list[str]:
    """Return what can be seen when for a person; no line has a character that would break it."""
    out = ["What can be seen when"] if found else []
    for name, plan in found.items():
        out.append(name)
        if isinstance(plan, str):
            out.append(f"  unknown: {plan}")
        else:
            about_runs = f"median of {plan.runs} simulated runs at the configured budget"
            out.append(f"  with {about(plan.per_day)} predictions a day, from the first day of a change on ({about_runs}):")
            out += [f"    {line}" for line in power.lines(plan)]
    return [line if line.isprintable() else repr(line)[1:-1] for line in out]


def as_dict(sizing: Sizing, room: Room) -> dict[str, Any]:
    """Return the plan for a program; sizes in bytes, times in ms."""
    return {
        "models": [asdict(s) | {"rows": s.rows} for s in sizing.shares],
        "rows": sizing.rows,
        "limit": sizing.limit,
        "disk": sizing.disk,
        "log_per_year": sizing.log,
        "index": list(sizing.index),
        "room": asdict(room),
    }


def about(n: float) -> str:
    """Return a number to three digits with the unit k, M or G."""
    digits = float(f"{n:.3g}")
    for unit, per in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if digits >= per:
            return f"{digits / per:g}{unit}"
    return f"{digits:g}"
