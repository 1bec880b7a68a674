"""False alarms of a year in which nothing happens, and how many days a change takes to be found: Scorewatch and its peers.

`python benchmarks/alarms.py [--quick] [--write] [--peers PYTHON]` prints the tables of docs/alarms.md (`--write` puts them there)
and marks whether the targets are met. PYTHON is an interpreter that has numpy, evidently and river, by default this one; peers it
lacks are left out and named. Everything is seeded. About ten minutes on two cores; `--quick` takes one and asks no such peers.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

import numpy as np

from monitor.core import power
from monitor.core.detectors import DETECTORS, Nulls, log_threshold, nulls
from monitor.core.events import Floats
from monitor.core.metrics.calibration import calibration_edges, ece
from monitor.core.metrics.drift import counts, psi_of
from monitor.core.policy import Policy, policy
from monitor.core.power import Population, Watch, watched
from monitor.core.readings import LabelRule, mature, scored
from monitor.core.tables import EDGES, Table, edges_of_width, total

DOC = Path(__file__).parent.parent / "docs" / "alarms.md"
START, END = "<!-- benchmarks/alarms.py -->", "<!-- end -->"
RULES = (LabelRule("unknown"),) * 6
SLICES, YEAR, BEFORE, AFTER = 12, 365, 30, 60
LIMIT = log_threshold(len(DETECTORS), 1.0)
WITHIN = {"a false alarm": 0.63, "a false alarm without day effects": 0.15, "+.5": 15, "+.7 in one slice": 20}


class Effects(NamedTuple):
    """Standard deviation and correlation of what the logits of all outcomes are off by day, and of the flagged share's logit."""

    sd: float = 0.0
    rho: float = 0.0
    volume: float = 0.0

    def __str__(self) -> str:
        if not self.sd:
            return "none"
        text = f"sd {self.sd:g}, ρ {self.rho:g}"
        return text + (f", scores {self.volume:g}" if self.volume else "")


NONE, USUAL, ROUGH, BOTH = Effects(), Effects(0.2, 0.3), Effects(0.64, 0.5), Effects(0.2, 0.3, 0.3)


def world(name: str) -> Population:
    """Return the scores of one of the four worlds, with a threshold."""
    rng = np.random.default_rng(1)
    if name == "gauss":
        return power.normal(0.04, 2.0, 0.2)
    score, threshold = {
        "unif": lambda: (rng.random(400_000), 0.5),
        "fraud": lambda: (rng.beta(0.3, 9, 400_000), 0.1),
        "conf": lambda: (rng.beta(6, 1, 400_000), 0.8),
    }[name]()
    return power.calibrated(score, threshold)


WORLDS = {name: world(name) for name in ("unif", "fraud", "conf", "gauss")}


def _more(p: Population) -> Population | None:
    return power.more_positives(p, 2.0) if p.prevalence < 0.4 else None


CHANGES: Mapping[str, tuple[Callable[[Population], Population | None], int]] = {
    "+.5": (lambda p: power.shifted(p, 0.5), SLICES),
    "+.2": (lambda p: power.shifted(p, 0.2), SLICES),
    "slope .7": (lambda p: power.shifted(p, 0.0, 0.7), SLICES),
    "prevalence x 2": (_more, SLICES),
    "recall -15 points": (lambda p: power.missed(p, 0.15), SLICES),
    "+.7 in one slice": (lambda p: power.shifted(p, 0.7), 1),
}
"""What happens to a population, and in how many of the slices."""


@dataclass(frozen=True)
class Case:
    """A world, its day effects, rows a day, days of the baseline, and the number of the repetition."""

    world: str
    effects: Effects
    rows: int
    baseline: int
    repetition: int

    def __str__(self) -> str:
        return f"{self.world}, {self.effects}, {self.rows}, {self.baseline}, {self.repetition}"

    @property
    def policy(self) -> Policy:
        """Return what decides."""
        return policy("", self.world, "", {"all": WORLDS[self.world].threshold})

    def rng(self, what: int) -> np.random.Generator:
        """Return the generator of one kind of days."""
        place = list(WORLDS).index(self.world), round(100 * self.effects.sd), round(100 * self.effects.volume)
        return np.random.default_rng((what, self.repetition, self.rows, self.baseline, *place))


def stream(
    case: Case, days: int, rng: np.random.Generator, changed: Population | None = None, slices: int = SLICES
) -> list[dict[str, Table]]:
    """Return the tables of days by slice, of a changed population in the first so many of the slices if there is one."""
    own = WORLDS[case.world]
    populations = [changed or own] * slices + [own] * (SLICES - slices)
    effects = power.wander(days, case.effects.sd, case.effects.rho, rng)
    volumes = power.wander(days, case.effects.volume, case.effects.rho, rng)
    pairs = zip(effects.tolist(), volumes.tolist(), strict=True)
    return [power.day(populations, case.rows, effect, volume, rng) for effect, volume in pairs]


def by_slice(days: Sequence[Mapping[str, Table]]) -> dict[str, dict[int, Table]]:
    """Return day tables by slice and day, as a baseline has them."""
    return {name: {i: tables[name] for i, tables in enumerate(days)} for name in days[0]}


def watches(expected: Nulls) -> dict[str, Watch]:
    """Return all detectors before the first day."""
    return {name: Watch(name, expected, RULES, LIMIT) for name in DETECTORS if name not in expected.reasons}


# Rules as they are used elsewhere, on the slice `all`.


def limits(base: Sequence[Table], days: Sequence[Table]) -> dict[str, list[int]]:
    """Return by rule the days on which it alarms: PSI of a day's scores over ten deciles, ECE of seven days, ECE of 28 days.

    The last is the shipped rule `calibration`, on the lower end. It says how far off the days were that did happen; if they were,
    that is no false alarm.
    """
    whole = total(base)
    reading = scored(whole)
    share = np.cumsum(reading.n) / reading.n.sum()
    deciles = np.unique(np.append(0, reading.bin[np.searchsorted(share, np.arange(1, 10) / 10)]))
    expected, edges, width = counts(reading, deciles), calibration_edges(reading), edges_of_width(10)
    psi = np.array([psi_of(counts(scored(t), deciles), expected) for t in days])
    weeks = {i: ece(mature(total(days[i - 6 : i + 1]), RULES), width).value for i in range(6, len(days), 7)}
    low = {i: ece(mature(total(days[max(i - 27, 0) : i + 1]), RULES), edges).low for i in range(6, len(days))}
    return {
        "PSI > .1": np.flatnonzero(psi > 0.1).tolist(),
        "PSI > .2": np.flatnonzero(psi > 0.2).tolist(),
        "ECE > .05": [i for i, x in weeks.items() if x > 0.05],
        "ECE low > .05": [i for i, x in low.items() if x is not None and x > 0.05],
    }


def rows_of(days: Sequence[Table], rng: np.random.Generator) -> dict[str, Floats]:
    """Return day, score, outcome and verdict of the rows of day tables, in random order within a day."""
    parts = []
    for i, t in enumerate(days):
        c = t.cells
        n = np.concatenate((c["n_neg"], c["n_pos"])).astype(int)
        low, high = EDGES[c["bin"]], np.append(EDGES, 1.0)[c["bin"] + 1]
        cell = rng.permutation(np.repeat(np.arange(2 * len(c)), n))
        at = cell % len(c)
        score = low[at] + (high - low)[at] * rng.random(len(at))
        parts.append((np.full(len(at), i), score, cell >= len(c), c["verdict"][at] == 1))
    return dict(zip(("day", "score", "outcome", "flagged"), map(np.concatenate, zip(*parts, strict=True)), strict=True))


def write_rows(path: Path, base: Sequence[Table], days: Sequence[Table], since: int, rng: np.random.Generator) -> None:
    """Write what benchmarks/peers.py reads: rows of days, and 5,000 scores of the baseline."""
    reference = rng.permutation(rows_of(base, rng)["score"])[:5_000]
    np.savez(path, reference=reference, since=since, **rows_of(days, rng))


# One repetition.


def year(case: Case, folder: Path | None = None) -> dict[str, Any]:
    """Return the false alarms of a year in which nothing changes, by rule; with a folder write its rows for the peers."""
    base, days = stream(case, case.baseline, case.rng(0)), stream(case, YEAR, case.rng(1))
    now = watches(nulls(by_slice(base), case.policy, RULES))
    alarms = dict.fromkeys(now, 0)
    for i, tables in enumerate(days):
        for name, before in now.items():
            now[name] = watched(before, i, tables)
            alarms[name] += bool(now[name].firing) and not before.firing
    whole, live = [t["all"] for t in base], [t["all"] for t in days]
    if folder:
        write_rows(folder / f"{case}.npz", whole, live, 0, case.rng(90))
    found = {name: len(at) for name, at in limits(whole, live).items()}
    return {"case": case, "alarms": {"Scorewatch": sum(alarms.values())} | alarms | found}


def change(case: Case, folder: Path | None = None) -> dict[str, Any]:
    """Return by change and rule after how many changed days it is found, infinity where it is not within AFTER days."""
    base, quiet = stream(case, case.baseline, case.rng(0)), stream(case, BEFORE, case.rng(2))
    start = watches(nulls(by_slice(base), case.policy, RULES))
    for i, tables in enumerate(quiet):
        start = {name: watched(w, i, tables) for name, w in start.items()}
    # An alarm that fires before anything happened has been answered: its evidence starts anew.
    start = {name: replace(w, firing="", evidence=None) if w.firing else w for name, w in start.items()}
    found: dict[str, dict[str, float]] = {}
    for k, (text, (make, slices)) in enumerate(CHANGES.items()):
        changed = make(WORLDS[case.world])
        if changed is None:
            continue
        days = stream(case, AFTER, case.rng(3 + k), changed, slices)
        whole, live = [t["all"] for t in base], [t["all"] for t in (*quiet, *days)]
        if folder:
            write_rows(folder / f"{case} {k}.npz", whole, live, BEFORE, case.rng(60 + k))
        alarms = {name: [i for i in at if i >= BEFORE] for name, at in limits(whole, live).items()}
        found[text] = {"Scorewatch": _found(start, days)} | {
            n: at[0] - BEFORE + 1 if at else math.inf for n, at in alarms.items()
        }
    return {"case": case, "found": found}


def _found(start: Mapping[str, Watch], days: Sequence[Mapping[str, Table]]) -> float:
    now = dict(start)
    for i, tables in enumerate(days, 1):
        now = {name: watched(w, BEFORE + i, tables) for name, w in now.items()}
        if any(w.firing for w in now.values()):
            return i
    return math.inf


# All of them.


def cases(quick: bool) -> tuple[list[Case], list[Case]]:
    """Return the years and the changes that are simulated."""
    years, changes = (2, 2) if quick else (6, 8)
    plain = [(effects, rows, 60) for effects in (NONE, USUAL, ROUGH) for rows in ((900,) if quick else (100, 900, 5_000))]
    more = [] if quick else [(BOTH, 900, 60), *((effects, 900, 31) for effects in (USUAL, ROUGH))]
    shifts = [(USUAL, 900), (USUAL, 5_000), *([] if quick else [(NONE, 900), (ROUGH, 900)])]
    return (
        [Case(world, e, rows, base, r) for r in range(years) for e, rows, base in (*plain, *more) for world in WORLDS],
        [Case(world, e, rows, 60, r) for r in range(changes) for e, rows in shifts for world in WORLDS],
    )


def _task(item: tuple[Callable[..., dict[str, Any]], Case, Path | None]) -> dict[str, Any]:
    function, case, folder = item
    return function(case, folder)


def asked(case: Case) -> bool:
    """Return whether peers that read rows are asked: of one repetition, for they take many times as long as all the rest."""
    return case.repetition < 1 and case.rows < 5_000 and case.baseline == 60 and case.effects in (NONE, USUAL)


def simulate(quick: bool, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the results of all cases; rows for the peers are written into the folder."""
    years, changes = cases(quick)
    items = [(year, c, folder if asked(c) and not quick else None) for c in years]
    items += [(change, c, folder if asked(c) and c.effects == USUAL and not quick else None) for c in changes]
    results = []
    with Pool(os.cpu_count()) as pool:
        for result in pool.imap(_task, items, chunksize=4):
            results.append(result)
            if sys.stderr.isatty():
                print(f"\r{len(results):,} of {len(items):,}", end="", file=sys.stderr, flush=True)
    return results[: len(years)], results[len(years) :]


def ask_peers(python: str, folder: Path, years: list[dict[str, Any]], changes: list[dict[str, Any]]) -> dict[str, str]:
    """Add what the peers say to the results and return those that are not installed, with the reason."""
    files, cores = sorted(map(str, folder.glob("*.npz"))), os.cpu_count() or 1
    command, environment = [python, str(Path(__file__).parent / "peers.py")], os.environ | {"DO_NOT_TRACK": "1"}
    running = [Popen([*command, *files[i::cores]], stdout=PIPE, env=environment) for i in range(cores)]
    said = [json.loads(process.communicate()[0]) for process in running]
    found = {name: alarms for part in said for name, alarms in part["found"].items()}
    for result in years:
        for name, day in found.get(str(result["case"]), {}).items():
            result["alarms"][name] = int(day is not None)
    for result in changes:
        for k, text in enumerate(CHANGES):
            for name, day in found.get(f"{result['case']} {k}", {}).items():
                result["found"][text][name] = math.inf if day is None else day - BEFORE + 1
    missing: dict[str, str] = said[0]["missing"]
    return missing


# What is printed.

PEERS = ("PSI > .1", "PSI > .2", "ECE > .05", "Evidently", "ADWIN", "KSWIN")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def _share(results: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Return the share of the years with an alarm of a rule, None where it was not asked."""
    alarms = [r["alarms"][name] > 0 for r in results if name in r["alarms"]]
    return sum(alarms) / len(alarms) if alarms else None


def _days(results: Iterable[Mapping[str, Any]], change: str, name: str) -> tuple[float, float] | None:
    """Return the median number of days (infinite: not found) and the share found, None where nobody asked."""
    days = sorted(r["found"][change][name] for r in results if name in r["found"].get(change, {}))
    return (days[len(days) // 2], sum(map(math.isfinite, days)) / len(days)) if days else None


def _text(found: tuple[float, float] | float | None) -> str:
    if found is None:
        return ""
    if isinstance(found, float):
        return f"{found:.2f}"
    return f"{found[0]:g} ({found[1]:.2f})" if math.isfinite(found[0]) else f"– ({found[1]:.2f})"


def _mark(value: float, most: float) -> str:
    return f"{'✓' if value <= most else '✗'} ≤ {most:g}"


def _grouped(results: Iterable[dict[str, Any]]) -> dict[tuple[int, Effects, int], list[dict[str, Any]]]:
    groups = defaultdict(list)
    for r in results:
        groups[r["case"].baseline, r["case"].effects, r["case"].rows].append(r)
    return groups


def _of(results: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [r for r in results if r["case"].world == name]


def false_alarms(years: list[dict[str, Any]]) -> Iterator[str]:
    """Return the table of false alarms."""
    rows = []
    for (base, effects, n), results in sorted(_grouped(years).items(), key=lambda item: (-item[0][0], item[0][1:])):
        share = _share(results, "Scorewatch") or 0.0
        most = WITHIN["a false alarm" if effects.sd else "a false alarm without day effects"]
        own = [_text(_share(_of(results, world), "Scorewatch")) for world in WORLDS]
        peers = [_text(_share(results, name)) for name in PEERS]
        rows.append([str(base), str(effects), f"{n:,}", *own, f"{share:.2f}", _mark(share, most), *peers])
    yield from _table(("baseline days", "day effects", "rows a day", *WORLDS, "all", "target", *PEERS), rows)


def by_rule(years: list[dict[str, Any]]) -> Iterator[str]:
    """Return the table of false alarms by rule, all worlds and numbers of rows together."""
    kinds = dict.fromkeys(r["case"].effects for r in years)
    of = {kind: [r for r in years if r["case"].effects == kind and r["case"].baseline == 60] for kind in kinds}
    rows = [[name, *(_text(_share(of[kind], name)) for kind in kinds)] for name in (*DETECTORS, "Scorewatch", "ECE low > .05")]
    yield from _table(("rule", *map(str, kinds)), rows)


def delays(changes: list[dict[str, Any]]) -> Iterator[str]:
    """Return the table of days until a change is found."""
    rows = []
    for (_, effects, n), results in sorted(_grouped(changes).items()):
        for text in CHANGES:
            own = [_days(_of(results, world), text, "Scorewatch") for world in WORLDS]
            most = WITHIN.get(text) if effects == USUAL else None
            marks = [f" {_mark(x[0], most)}" if x and most else "" for x in own]
            peers = [_text(_days(results, text, name)) for name in PEERS]
            cells = [_text(x) + mark for x, mark in zip(own, marks, strict=True)]
            rows.append([str(effects), f"{n:,}", text, *cells, *peers])
    yield from _table(("day effects", "rows a day", "change", *WORLDS, *PEERS), rows)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions and no peers that read rows, about a minute")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/alarms.md")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter that has evidently and river")
    args = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        years, changes = simulate(args.quick, Path(folder))
        missing = {} if args.quick else ask_peers(args.peers, Path(folder), years, changes)
    n, k = (max(r["case"].repetition for r in results) + 1 for results in (years, changes))
    took = f"{time.monotonic() - begun:.0f} s on {os.cpu_count()} cores"
    out = [
        f"{len(years)} years, {n} of each world and kind, and {k} repetitions of each change, in {took}.",
        *(f"Not asked: {name} ({why})." for name, why in missing.items()),
        "",
        "### Share of the years with a false alarm",
        "",
        *false_alarms(years),
        "### The same by rule",
        "",
        *by_rule(years),
        "### Days until a change is found",
        "",
        *delays(changes),
    ]
    print("\n".join(out))
    if args.write:
        text = DOC.read_text()
        a, b = text.index(START) + len(START), text.index(END)
        DOC.write_text(text[:a] + "\n" + "\n".join(out) + text[b:])


if __name__ == "__main__":
    main()
