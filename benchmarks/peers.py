"""What evidently and river say of streams of rows: `python benchmarks/peers.py FILE...` is started by benchmarks/alarms.py.

A file (.npz) holds `reference` scores, and `day`, `score`, `outcome`, `flagged` of rows; days from `since` on are looked at. It
prints one JSON object: what is not installed, and by file and rule the first day with an alarm.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def evidently() -> Callable[[Mapping[str, Any]], int | None]:
    """Return the rule: ValueDrift with its defaults, on the scores of each day."""
    import pandas
    from evidently import DataDefinition, Dataset, Report
    from evidently.metrics import ValueDrift

    definition = DataDefinition(numerical_columns=["score"])

    def data(score: Any) -> Any:
        return Dataset.from_pandas(pandas.DataFrame({"score": score}), definition)

    def first(rows: Mapping[str, Any]) -> int | None:
        reference, report = data(rows["reference"]), Report([ValueDrift(column="score")])
        for day in range(int(rows["since"]), int(rows["day"].max()) + 1):
            found = report.run(data(rows["score"][rows["day"] == day]), reference).dict()["metrics"][0]
            # Above its threshold a distance is drift, below it a p-value.
            distance, limit = "p_value" not in found["config"]["method"], found["config"]["threshold"]
            if found["value"] >= limit if distance else found["value"] < limit:
                return day
        return None

    return first


def river(name: str) -> Callable[[Mapping[str, Any]], int | None]:
    """Return the rule: ADWIN on the errors of the verdicts, KSWIN on the scores, row by row with their defaults."""
    from river import drift

    def first(rows: Mapping[str, Any]) -> int | None:
        days = rows["day"].tolist()
        if name == "ADWIN":
            detector, values, start = drift.ADWIN(), (rows["outcome"] != rows["flagged"]).tolist(), 0
        else:
            # It remembers a hundred rows, so those of one day before are enough.
            start = int(np.searchsorted(rows["day"], int(rows["since"]) - 1))
            detector, values = drift.KSWIN(seed=1), rows["score"].tolist()
        for day, value in zip(days[start:], values[start:], strict=True):
            detector.update(value)
            if detector.drift_detected and day >= rows["since"]:
                return int(day)
        return None

    return first


RULES: Mapping[str, Callable[[], Callable[[Mapping[str, Any]], int | None]]] = {
    "Evidently": evidently,
    "ADWIN": lambda: river("ADWIN"),
    "KSWIN": lambda: river("KSWIN"),
}


def installed() -> Iterator[tuple[str, Any]]:
    """Return the rules, or why there is none."""
    for name, make in RULES.items():
        try:
            yield name, make()
        except ImportError as e:
            yield name, str(e)


def main() -> None:
    """Print what is found."""
    warnings.simplefilter("ignore")
    rules = dict(installed())
    missing = {name: why for name, why in rules.items() if isinstance(why, str)}
    found: dict[str, dict[str, int | None]] = {}
    for path in map(Path, sys.argv[1:]):
        with np.load(path) as loaded:
            rows = {name: loaded[name] for name in loaded.files}
        found[path.stem] = {name: rule(rows) for name, rule in rules.items() if name not in missing}
    print(json.dumps({"missing": missing, "found": found}))


if __name__ == "__main__":
    main()
