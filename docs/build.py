"""Write docs/series.md, the table of docs/rules.md and, given a file with it, the demo's output into README."""

import sys
from pathlib import Path

from monitor.core.days import RECENT
from monitor.core.detectors import DETECTORS
from monitor.core.policy import Limit
from monitor.core.rules import SHIPPED
from monitor.series import SERIES

HERE = Path(__file__).parent
RULES = "<!-- rules -->\n"
START, END = "```\n", "\n```\n\nLook at `auc`"


def series() -> str:
    """Return the table of all series."""
    lines = [
        "# Series",
        "",
        "Every series of `/metrics`, made from `monitor/series.py`. An estimate that does not exist is absent; then",
        "`scorewatch_estimate_available` is 0 and its label `reason` says why. Times are seconds since 1970.",
        "",
        "Intervals are those of independent rows. Shares of weighted rows have one of their logit, and their losses",
        "are read off the mean scores of the grid's bins. Rows with a `cluster` widen every interval; where that cannot be done,",
        "the ends are absent and `/v1/state` says why as `interval_reason`.",
        "",
        "`_low` and `_high` are about the days that happened: how far was the model off in this window? `_expect_low` and",
        "`_expect_high` take days as a sample: what would days like these show? They come from how much the whole days of a",
        "window differ, from seven days on (before that, from how much the days of the baseline do), and",
        "`scorewatch_design_effect` says how many times the variance that is.",
        "",
        "| series | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {s.kind} | {', '.join(s.labels)} | {s.help.replace('|', chr(92) + '|')} |" for name, s in SERIES.items()
    ]
    return "\n".join(lines) + "\n"


_OTHER = {
    "calibration": "Calibration error of the scores, at least (lower end of its 99 % interval).",
    "canary": "A canary beside the live version on the same days; the limit is in units of what is large.",
    "policy_volume": "Flagged by the current policy over flagged by the one before it, on the same scores.",
    "policy_not_followed": "Rows that name another policy than the current one, from `follow_within` after its activation on.",
    "data_loss": "Rows of the last day over what the weekday with the fewest usually has, of the 28 days before.",
    "label_coverage": "Label coverage of the newest mature day over the median of the 28 before.",
}


def rules() -> str:
    """Return the table of the shipped rules."""
    lines = ["| rule | what it looks at | days | fires | resolves | severity | action |", "|---|---|---|---|---|---|---|"]
    for r in SHIPPED.values():
        what = DETECTORS[r.detector].help if r.detector in DETECTORS else _OTHER[r.name]
        days = "last hours" if r.window in RECENT else f"{r.window}, {'mature' if r.basis == 'mature' else 'as they end'}"
        fires = _limit(r.fires[0]) + (" and evidence" if r.detector else "")
        lines.append(f"| `{r.name}` | {what} | {days} | {fires} | {_limit(r.resolves)} | {r.severity} | {r.action} |")
    return "\n".join(lines)


def _limit(limit: Limit) -> str:
    """Return a limit in words."""
    end = "" if limit.end == "value" else f" ({limit.end} end)"
    if limit.low is not None and limit.high is not None:
        return f"`{limit.metric}`{end} {'inside' if limit.inside else 'outside'} [{limit.low:.3g}, {limit.high:.3g}]"
    return f"`{limit.metric}`{end} " + (f"below {limit.low:.3g}" if limit.high is None else f"above {limit.high:.3g}")


def story(output: str) -> str:
    """Return what README shows of the demo: everything after the addresses."""
    return output[output.index("A model says") :].strip()


def main() -> None:
    """Write the files."""
    (HERE / "series.md").write_text(series())
    page = (HERE / "rules.md").read_text()
    a, b = page.index(RULES) + len(RULES), page.index("<!-- end -->")
    (HERE / "rules.md").write_text(page[:a] + rules() + "\n" + page[b:])
    if len(sys.argv) > 1:
        readme = HERE.parent / "README.md"
        text = readme.read_text()
        head = text.index("## What you see")
        a, b = text.index(START, head) + len(START), text.index(END, head)
        readme.write_text(text[:a] + story(Path(sys.argv[1]).read_text()) + text[b:])


if __name__ == "__main__":
    main()
