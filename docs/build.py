"""Write docs/series.md from the contract of series and, given a file with it, the demo's output into README."""

import sys
from pathlib import Path

from monitor.series import SERIES

HERE = Path(__file__).parent
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


def story(output: str) -> str:
    """Return what README shows of the demo: everything after the addresses."""
    return output[output.index("A model says") :].strip()


def main() -> None:
    """Write the files."""
    (HERE / "series.md").write_text(series())
    if len(sys.argv) > 1:
        readme = HERE.parent / "README.md"
        text = readme.read_text()
        head = text.index("## What you see")
        a, b = text.index(START, head) + len(START), text.index(END, head)
        readme.write_text(text[:a] + story(Path(sys.argv[1]).read_text()) + text[b:])


if __name__ == "__main__":
    main()
