"""The commands. Exit codes: 0 done, 1 it cannot be done, 2 wrong usage or configuration."""

import argparse
import http.client
import json
import logging
import re
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import date
from getpass import getuser
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from monitor import timeline
from monitor.clock import wall
from monitor.config import Address, Config, ConfigError, FileSource, Model, describe, effective, load, objective_of
from monitor.store import StateError

if TYPE_CHECKING:
    from monitor.agent import Agent
    from monitor.core.policy import Policy
    from monitor.core.power import Plan
    from monitor.core.thresholds import Objective
    from monitor.validation import Built

VERSION = version("scorewatch")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("apscheduler").setLevel("WARNING")
    try:
        command: Callable[[argparse.Namespace], int] = args.command
        return command(args)
    except ConfigError as e:
        print(e, file=sys.stderr)
        return 2
    except (StateError, OSError, ValueError) as e:
        print(f"scorewatch: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scorewatch", description="Watch deployed classifiers.")
    parser.add_argument("--version", action="version", version=f"scorewatch {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(command=function)
        return made

    def configured(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--config", type=Path, default=Path("/etc/scorewatch/monitor.yaml"), metavar="FILE", help="default: %(default)s"
        )

    configured(add("run", _run, "Run the agent until SIGTERM or Ctrl-C."))
    check = add("check", _check, "Validate a configuration, print it with every default, and say what it needs.")
    configured(check)
    check.add_argument("--json", action="store_true", help="one JSON object")

    demo = add("demo", _demo, "Watch nine months of real flights in about a minute.")
    demo.add_argument("--exit", action="store_true", help="end after the summary instead of serving on")
    demo.add_argument(
        "--speed",
        type=float,
        default=4.5,
        metavar="DAYS",
        help="days of flights a second, 0: as fast as it goes (default: %(default)s)",
    )
    demo.add_argument(
        "--files", type=Path, metavar="DIR", help="write data, baseline and configuration there for `replay`, and end"
    )

    baseline = add("baseline", _show, "Build a baseline, or show what one promises.")
    of_baseline = baseline.add_subparsers(required=True, metavar="COMMAND")
    _build_parser(of_baseline.add_parser("build", help=_BUILD, description=_BUILD))
    show = of_baseline.add_parser("show", help="Print what a baseline file says.", description="Print what a baseline file says.")
    show.add_argument("file", type=Path, metavar="FILE")
    show.add_argument("--config", type=Path, metavar="FILE", help="what can be seen when is that of this configuration")
    show.add_argument("--json", action="store_true", help="one JSON object")

    replay = add("replay", _replay, "Run the agent over files: what would have alerted, and when.")
    configured(replay)
    replay.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="NDJSON or CSV, also .gz; default: the file sources of the configuration",
    )
    replay.add_argument("--by", choices=("month", "day"), default="month", help="print estimates per month or per day, too")
    replay.add_argument("--json", action="store_true", help="one JSON object a line")
    replay.add_argument("--state", type=Path, metavar="DIR", help="keep the state there instead of throwing it away")

    activate = add("activate", _change, "Make a policy current.")
    chosen = activate.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--threshold", type=_share, metavar="T", help="a new policy with this threshold")
    chosen.add_argument("--policy", type=Path, metavar="FILE", help="a policy as JSON")
    rollback = add("rollback", _change, "Go back to the last policy in good standing.")
    for made, kind in ((activate, "activate"), (rollback, "rollback")):
        configured(made)
        made.set_defaults(kind=kind)
        made.add_argument("model", metavar="MODEL")
        made.add_argument("--version", metavar="V", help="needed when several versions are live")
        made.add_argument("--reason", type=_reason, required=kind == "activate", default="by hand", metavar="TEXT")

    threshold = add("threshold", _threshold, "Choose a threshold, and show what others would do.")
    configured(threshold)
    threshold.add_argument("model", metavar="MODEL")
    threshold.add_argument("--version", metavar="V", help="needed when several versions have mature days")
    data = threshold.add_mutually_exclusive_group()
    data.add_argument("--baseline", type=Path, metavar="FILE", help="validation outcomes; default: the model's baseline")
    data.add_argument("--live", action="store_true", help="the mature days of the agent, running or not")
    threshold.add_argument(
        "--days", type=_above_0, default=28, metavar="N", help="with --live: so many of the last (default: %(default)s)"
    )
    aim = threshold.add_mutually_exclusive_group()
    aim.add_argument("--cost", metavar="MISSED:FALSE_ALARM", help="the least cost; default: what the configuration says")
    aim.add_argument("--utility", metavar="TP:FP:FN:TN", help="the largest utility")
    aim.add_argument("--capacity", type=_above_0, metavar="PER_DAY", help="at most so many a day, from scores alone")
    aim.add_argument("--min-recall", type=float, metavar="SHARE", help="the highest that keeps the recall with 95 %% confidence")
    aim.add_argument("--precision-floor", type=float, metavar="SHARE", help="most hits at a precision, with 95 %% confidence")
    aim.add_argument("--fpr-cap", type=float, metavar="SHARE", help="most hits at a false positive rate, with 95 %% confidence")
    aim.add_argument("--f1", action="store_true", help="the largest F1")
    aim.add_argument("--youden", action="store_true", help="the largest recall less false positive rate")
    aim.add_argument("--fixed", type=_share, metavar="T", help="this one")
    threshold.add_argument("--policy", type=Path, metavar="FILE", help="scores as the calibrator of this policy serves them")
    threshold.add_argument("--by", metavar="SEGMENT", help="values of this segment may have their own")
    threshold.add_argument("--prevalence", type=_share, metavar="SHARE", help="where it belongs at this prevalence")
    threshold.add_argument("--out", type=Path, metavar="FILE", help="write the policy there, for `activate --policy`")
    threshold.add_argument("--json", action="store_true", help="one JSON object")

    calibrate = add("calibrate", _calibrate, "Try calibrators on mature days; one that wins waits for `approve`.")
    configured(calibrate)
    calibrate.add_argument("model", metavar="MODEL")
    calibrate.add_argument("--version", metavar="V", help="needed when several versions are live")
    calibrate.add_argument("--reason", type=_reason, default="by hand", metavar="TEXT")
    calibrate.add_argument("--json", action="store_true", help="one JSON object")

    approve = add("approve", _approve, "Answer a proposal, a tested change that waits for a person.")
    configured(approve)
    approve.add_argument(
        "proposal", type=int, metavar="PROPOSAL", help="its number, from the timeline, the page or /v1/proposals"
    )
    approve.add_argument("--reject", action="store_true", help="reject it")
    approve.add_argument("--reason", type=_reason, required=True, metavar="TEXT")

    reload = add("reload", _reload, "Let the running agent go on with what its configuration file says now.")
    configured(reload)
    reload.add_argument("--reason", type=_reason, default="by hand", metavar="TEXT")

    journal = add("log", _log, "Print the journal of a stopped agent: alerts, decisions, policy changes.")
    configured(journal)
    journal.add_argument("--json", action="store_true", help="one JSON object a line")
    journal.add_argument("--verify", action="store_true", help="check that no entry was changed or taken out")
    journal.add_argument(
        "--expect", type=_head, metavar="SEQ:HASH", help="check it against a head that was written down elsewhere"
    )

    counted = add("verify", _verify, "Count every day that still has its rows again, and compare with what is kept.")
    counted.epilog = "Exit code 0: equal; 1: something differs; 2: it cannot be done."
    configured(counted)
    counted.add_argument("--url", metavar="URL", help="api of the running agent; default: that of the configuration")
    counted.add_argument("--json", action="store_true", help="one JSON object")

    export = add("export", _export, "Write the final tables of every closed day as NDJSON, to be added by `merge`.")
    export.add_argument("what", choices=("data",))
    configured(export)
    export.add_argument("--url", metavar="URL", help="api of a running agent; needs no configuration")

    merge = add("merge", _merge, "Add what several agents exported and print the mature estimates of all of it.")
    merge.add_argument("files", nargs="+", type=Path, metavar="FILE", help="from `export data`")
    merge.add_argument("--by", choices=("month", "day"), default="month", help="default: %(default)s")
    merge.add_argument("--slice", default="all", metavar="NAME", help="default: %(default)s")
    merge.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


_BUILD = "Build a baseline and a policy from labelled rows of a validation, or a baseline from mature days of an agent."


def _build_parser(build: argparse.ArgumentParser) -> None:
    build.set_defaults(command=_build)
    build.add_argument("files", nargs="*", type=Path, metavar="FILE", help="CSV or NDJSON, also .gz, or Parquet (extra lake)")
    build.add_argument("--model", metavar="MODEL", help="needed with files")
    build.add_argument("--version", metavar="V", help="needed with files, and with --from when several versions have days")
    build.add_argument("--out", type=Path, required=True, metavar="FILE", help="the baseline; of a model with classes, a folder")
    build.add_argument(
        "--policy", type=Path, metavar="FILE", help="write the policy there that is chosen, for `activate --policy`"
    )
    build.add_argument(
        "--config", type=Path, metavar="FILE", help="segments, features, labels and threshold are those of MODEL here"
    )
    build.add_argument("--segments", type=_names, metavar="A,B", help="columns that slices are made of; default: as configured")
    build.add_argument(
        "--features", type=_names, metavar="A,B", help="columns that are frozen as features; default: as configured"
    )
    build.add_argument("--data-slice", default="", metavar="TEXT", help="which data it is, in words; default: the file names")
    build.add_argument(
        "--split",
        type=_shares,
        metavar="SHARES",
        help="roles of rows without one, by time, else by entity or id; default: calibration=.4,selection=.3,test=.3",
    )
    build.add_argument("--allow-rejected", type=int, default=0, metavar="N", help="build though so many rows cannot be used")
    build.add_argument("--from", dest="source", metavar="MODEL", help="mature days of this model instead of files")
    build.add_argument("--since", type=_day, metavar="DATE", help="the first of these days (UTC)")
    build.add_argument("--until", type=_day, metavar="DATE", help="the day after the last of them")
    build.add_argument("--url", metavar="URL", help="api of the running agent; default: that of the configuration")
    build.add_argument("--json", action="store_true", help="print what was built as one JSON object a baseline")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, text.split(","))))


def _day(text: str) -> int:
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


def _shares(text: str) -> tuple[float, ...]:
    from monitor.core.validation import ROLES

    given = dict(part.split("=") for part in text.split(","))
    shares = tuple(float(given.pop(name, 0)) for name in ROLES)
    if given or min(shares) < 0 or not 0.999 <= sum(shares) <= 1.001:
        raise ValueError
    return shares


def _run(args: argparse.Namespace) -> int:
    from monitor.run import run

    config = load(args.config, serving=True)

    def started(api: str, metrics: str) -> None:
        print(f"scorewatch {VERSION} listens on {api} (events, state) and {metrics}/metrics, state in {config.state}", flush=True)

    run(config, VERSION, started)
    return 0


def _check(args: argparse.Namespace) -> int:
    from monitor import check
    from monitor.watched import baseline_of

    config = load(args.config, serving=True)
    sizing, room = check.size_of(config), check.room_of(config.state)
    promised, wrong = check.baselines(config, baseline_of)
    misfits, seen = wrong + check.misfits(config, sizing, room), check.sights(config, promised, _progress)
    _progress("", last=True)
    if args.json:
        plans = {name: found if isinstance(found, str) else asdict(found) for name, found in seen.items()}
        plan = {"plan": check.as_dict(sizing, room), "seen": plans}
        print(json.dumps({"configuration": effective(config), **plan, "misfits": misfits}))
    else:
        # As comments the plan leaves the output a configuration.
        lines = check.lines(config, sizing, room) + check.seen_lines(seen)
        print(describe(config) + "\n".join(f"# {line}".rstrip() for line in lines))
    if misfits:
        raise ConfigError("\n".join(misfits))
    return 0


def _show(args: argparse.Namespace) -> int:
    from monitor import check, promise
    from monitor.watched import read_baseline

    baseline = read_baseline(args.file)
    found, models = promise.as_dict(baseline), load(args.config).models if args.config else {}
    plan: Plan | str
    try:
        plan = check.seen(models.get(baseline.model, Model(baseline.model)), baseline)
    except ValueError as e:
        plan = str(e)
    if args.json:
        print(json.dumps(found | {"seen": plan if isinstance(plan, str) else asdict(plan)}))
    else:
        print("\n".join((*promise.lines(found), *check.seen_lines({baseline.model: plan}))))
    return 0


def _build(args: argparse.Namespace) -> int:
    from monitor import promise

    if bool(args.files) is bool(args.source):
        raise ConfigError("scorewatch baseline build: name files with labelled rows, or a model whose days are used with --from")
    made = [_build_from_days(args)] if args.source else _build_from_files(args)
    for built in made:
        found = promise.as_dict(built.baseline) | {"file": str(built.path)}
        print(json.dumps(found) if args.json else "\n".join((*promise.lines(found), f"  written to {built.path}")))
    if args.policy and not any(built.policy for built in made):
        print(f"no policy could be chosen, so {args.policy} is not written", file=sys.stderr)
    return 0


def _build_from_files(args: argparse.Namespace) -> "list[Built]":
    from monitor import validation

    if args.model is None or args.version is None:
        raise ConfigError("scorewatch baseline build: name the model and its version with --model and --version")
    kept = [*args.files, *([args.config] if args.config else [])]
    for option, out, others in (("--out", args.out, kept), ("--policy", args.policy, [*kept, args.out])):
        if out is not None and out.resolve() in (path.resolve() for path in others):
            raise ConfigError(
                f"scorewatch baseline build: {option}: found {out}, which would be written over; write another file"
            )
    model = _model_of(args)
    shares = args.split or validation.SHARES
    order = validation.Order(
        tuple(args.files),
        model,
        args.version,
        args.out,
        VERSION,
        wall(),
        args.policy,
        args.data_slice,
        shares,
        args.allow_rejected,
    )
    rows = validation.load(order)
    for line in validation.refusals(rows.refused):
        print(line, file=sys.stderr)
    if rows.unused:
        print(f"columns that are not used: {', '.join(sorted(rows.unused))}", file=sys.stderr)
    return validation.build(order, rows)


def _model_of(args: argparse.Namespace) -> Model:
    """Return the model as configured, with the segments and features of the command line."""
    from monitor.core.tables import FEATURES

    models = load(args.config, built=False).named if args.config else {}
    if args.config and args.model not in models:
        raise ConfigError(f"{args.config}: models: found no {args.model}; write it there or name one of {', '.join(models)}")
    model = models.get(args.model, Model(args.model))
    given = {name: value for name in ("segments", "features") if (value := getattr(args, name)) is not None}
    if len(given.get("features", ())) > FEATURES:
        raise ConfigError(f"--features: found {len(given['features'])} names; write at most {FEATURES}")
    return replace(model, **given)


def _build_from_days(args: argparse.Namespace) -> "Built":
    from monitor import data, validation

    if args.since is None or args.until is None or (args.config is None and args.url is None):
        raise ConfigError("scorewatch baseline build: --from needs --since and --until, and --config or --url")
    config = load(args.config) if args.config else None
    segments = config.models[args.source].segments if config and args.source in config.models else None
    span = data.Span(args.source, args.version, args.since, args.until, segments)
    with _exported(config, args.url) as lines:
        return validation.write(args.out, data.observed(lines, span, VERSION, wall()))


def _demo(args: argparse.Namespace) -> int:
    from monitor.demo import script

    if args.files:
        script.write_files(args.files)
        return 0
    return script.demo(args.speed, args.exit)


def _replay(args: argparse.Namespace) -> int:
    from monitor.run import replay

    config = load(args.config)
    files = tuple(_file(path) for path in args.files) or tuple(s for s in config.sources if isinstance(s, FileSource))
    if not files:
        raise ConfigError(
            f"{args.config}: sources: found no file to replay; name files on the command line or add `- file: {{path: ...}}`"
        )
    files = tuple(replace(s, follow=False) for s in files)
    if missing := [str(s.path) for s in files if not s.path.exists()]:
        raise ConfigError(f"{', '.join(missing)}: there is no such file")
    tick = config.tick if config.clock == "events" else 3_600_000
    if not args.json:
        print(timeline.HEADER)

    def item(entry: dict[str, Any]) -> None:
        print(json.dumps(entry) if args.json else timeline.line(entry, sys.stdout.isatty()), flush=True)

    with tempfile.TemporaryDirectory(prefix="scorewatch-") as folder:
        models = {name: replace(m, policies=None) for name, m in config.models.items()}
        state = args.state or Path(folder)
        replay(
            replace(config, clock="events", tick=tick, sources=files, state=state, models=models),
            VERSION,
            item,
            args.by == "day",
            args.state is not None,
        )
    return 0


def _file(path: Path) -> FileSource:
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file")
    name = path.name.removesuffix(".gz")
    return FileSource(path, "events", False, "csv" if name.endswith(".csv") else "ndjson")


def _change(args: argparse.Namespace) -> int:
    config = load(args.config)
    body: dict[str, Any] = {"version": args.version, "reason": args.reason}
    if args.kind == "activate":
        body |= {"threshold": args.threshold} if args.policy is None else {"policy": json.loads(_policy(args.policy).to_json())}
    done = _ask(config, f"/v1/models/{quote(args.model, safe='')}/{args.kind}", body)
    if done is None:
        given = {k: body[k] for k in ("threshold", "policy") if k in body}
        done = _alone(config, lambda a: a.command(args.kind, args.model, args.version, getuser(), args.reason, **given))
    _say_change(done)
    return 0


def _policy(path: Path) -> "Policy":
    """Return the policy in a file."""
    from monitor.core.policy import from_json

    try:
        return from_json(path.read_text("utf-8"))
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None


def _say_change(done: dict[str, Any]) -> None:
    print(f"{done['model']} {done['version']}: policy {done['policy']} (threshold {done['threshold']:g}) is current")
    if done.get("pending"):
        print("current.json could not be written yet; the agent tries again at its next tick", file=sys.stderr)


def _approve(args: argparse.Namespace) -> int:
    config = load(args.config)
    done = _ask(config, f"/v1/proposals/{args.proposal}", {"approve": not args.reject, "reason": args.reason})
    if done is None:
        done = _alone(config, lambda a: a.answer(args.proposal, not args.reject, getuser(), args.reason))
    if done["approved"]:
        _say_change(done)
    else:
        print(f"{done['model']} {done['version']}: proposal {args.proposal} is rejected")
    return 0


def _reload(args: argparse.Namespace) -> int:
    config = load(args.config)
    done = _ask(config, "/-/reload", {"reason": args.reason})
    if done is None:
        raise ValueError(f"no agent listens on {config.api}; its start will read {args.config}")
    print(f"the agent goes on with {done['path']}")
    return 0


def _threshold(args: argparse.Namespace) -> int:
    from monitor import choose, data
    from monitor.core.policy import IDENTITY
    from monitor.watched import read_baseline

    config = load(args.config)
    model = config.models.get(args.model) or config.models.get("*")
    if model is None:
        raise ConfigError(f"{args.config}: models has no {args.model!r}; it has {', '.join(config.models)}")
    if model.score == "margin":
        raise ConfigError(f"{args.config}: models.{args.model}.score: found margin, which is no probability to have a threshold")
    objective = _objective(args) or model.objective
    if objective is None:
        raise ConfigError(
            f"{args.config}: models.{args.model}.threshold: found no objective; write one, or give --cost or another"
        )
    path = args.baseline or model.baseline
    if args.live:
        with _exported(config, None) as lines:
            version, days = data.days_of(lines, args.model, args.version)
        of = choose.of_days(args.model, version, days, args.days)
    elif path is not None:
        of = choose.of_baseline(read_baseline(path), str(path), model.labels.rules)
    else:
        raise ConfigError(f"{args.config}: models.{args.model}.baseline: found nothing; write a baseline, or give --live")
    if (of.model, of.version) != (args.model, args.version or of.version):
        raise ValueError(f"{of.source} is of {of.model} {of.version}")
    made = None if args.policy is None else _policy_in(args.policy, of.model, of.version)
    calibrator, current = (IDENTITY, model.threshold) if made is None else (made.calibrator, made.threshold)
    said = choose.found(of, objective, calibrator, args.by or model.by, current, args.prevalence)
    if args.out:
        args.out.write_text(choose.policy_of(said))
        if made is not None and (made.review or made.abstain):
            print(f"{args.out}: review and abstain of {args.policy} are not in it; add them by hand", file=sys.stderr)
    if args.json:
        print(json.dumps(said))
        return 0
    print("\n".join(choose.lines(said)))
    # Not `--threshold`: that is of the scores which the present policy serves, and leaves out those of slices.
    print(f'\nscorewatch activate {args.model} --policy {args.out or "FILE"} --reason "{objective.name} of {of.source}"')
    if not args.out:
        print("FILE is what --out FILE writes.")
    return 0


def _policy_in(path: Path, model: str, version: str) -> "Policy":
    """Return the policy in a file, which must be of a model version: a calibrator of another one says nothing of its scores."""
    made = _policy(path)
    if (made.model, made.version) != (model, version):
        raise ValueError(f"{path} is a policy of {made.model} {made.version}, the outcomes are of {model} {version}")
    return made


def _objective(args: argparse.Namespace) -> "Objective | None":
    """Return what the command line says a threshold is for."""
    from monitor.core.thresholds import Objective

    for name, parts in (("cost", ("missed", "false_alarm")), ("utility", ("tp", "fp", "fn", "tn"))):
        if (text := getattr(args, name)) is not None:
            return objective_of(f"--{name}", name, _parts(name, text, parts))
    for name in ("capacity", "min_recall", "precision_floor", "fpr_cap"):
        if (value := getattr(args, name)) is not None:
            key = {"per_day": value} if name == "capacity" else value
            return objective_of(f"--{name.replace('_', '-')}", name, key)
    if args.f1 or args.youden:
        return Objective("f1" if args.f1 else "youden")
    return None if args.fixed is None else Objective("fixed", args.fixed)


def _parts(name: str, text: str, parts: Sequence[str]) -> dict[str, float]:
    try:
        return dict(zip(parts, map(float, text.split(":")), strict=True))
    except ValueError:
        wanted, example = ":".join(parts).upper(), {"cost": "10:1", "utility": "5:-2:-6:0"}[name]
        raise ConfigError(f"--{name}: found {text!r}; write {wanted}, such as {example}") from None


def _above_0(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"found {text!r}; write a whole number above 0")
    return int(text)


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= 1.0:
        raise argparse.ArgumentTypeError(f"found {text!r}; write a number from 0 to 1")
    return found


def _calibrate(args: argparse.Namespace) -> int:
    from monitor.actions.rollback import PolicyError

    config = load(args.config)
    body: dict[str, Any] = {"version": args.version, "reason": args.reason}
    model = config.models.get(args.model) or config.models.get("*") or Model(args.model)
    limit = model.recalibrate.limit / 1000
    found = _ask(config, f"/v1/models/{quote(args.model, safe='')}/calibrate", body, 60 + limit)
    if found is None:
        with _stopped(config) as agent:
            try:
                found = agent.calibrated(agent.calibrate(args.model, args.version, getuser(), args.reason), wait=True)
            except PolicyError as e:
                raise ValueError(str(e)) from None
    print(json.dumps(found) if args.json else "\n".join(timeline.trial(found or {})))
    return 0


def _ask(config: Config, path: str, body: dict[str, Any], timeout: float = 30) -> dict[str, Any] | None:
    """Return the running agent's answer, None when no agent listens; raise ValueError with its message when it refuses."""
    token = config.tokens.first("decide")
    # Who signs is said by the token where there is one.
    answer = _request(_url(config.api) + path, token, body if token else body | {"who": getuser()}, timeout)
    if answer is None:
        return None
    with answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _request(url: str, token: str | None, body: dict[str, Any] | None, timeout: float = 30) -> http.client.HTTPResponse | None:
    """Return the answer to a POST of the body, or to a GET without one; None when nobody listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
        return answer
    except urllib.error.HTTPError as e:
        with e:
            raise ValueError(_error_of(e.read()) or str(e)) from None
    except urllib.error.URLError:
        return None


def _error_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return ""


def _streamed(url: str, token: str | None, path: str, body: dict[str, Any] | None) -> Iterator[bytes] | None:
    """Return the lines of the running agent's answer, None when no agent listens there."""
    answer = _request(url.rstrip("/") + path, token, body)
    return None if answer is None else _lines(answer)


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    with answer:
        try:
            for line in answer:
                if line.startswith(b'{"error":'):
                    raise ValueError(_error_of(line))
                yield line
        except http.client.HTTPException as e:
            raise ValueError(f"the agent's answer was cut short ({e!r}); ask again") from None


def _url(address: Address) -> str:
    return f"http://{address}"


@contextmanager
def _stopped(config: Config) -> Iterator["Agent"]:
    """Open the state of a stopped agent, which its next start finds as it was."""
    from monitor.agent import Agent

    if not (config.state / "log.db").exists():
        raise ValueError(f"{config.state}: there is no state yet")
    agent = Agent(config, VERSION)
    with closing(agent.store):
        yield agent


def _progress(text: str, last: bool = False) -> None:
    """Say on a terminal how far long work is."""
    if sys.stderr.isatty():
        print(f"\r{text}", end="\r\033[K" if last else "", file=sys.stderr, flush=True)


def _verify(args: argparse.Namespace) -> int:
    from sqlite3 import DatabaseError

    from monitor import verify

    def steps(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for done, step in enumerate(found, 1):
            _progress(f"{done:,} of {step['of']:,}", done == step["of"])
            yield step

    try:
        config = load(args.config)
        if (lines := _streamed(args.url or _url(config.api), config.tokens.first("decide"), "/v1/verify", {})) is not None:
            found = verify.report(steps(map(json.loads, lines)))
        elif args.url:
            raise ValueError(f"{args.url}: no agent listens there")
        else:
            with _stopped(config) as agent:
                found = verify.report(steps(map(asdict, agent.verify(live=False))))
    except (StateError, OSError, ValueError, DatabaseError) as e:
        print(f"scorewatch: {e}", file=sys.stderr)
        return 2
    print(json.dumps(found) if args.json else "\n".join(verify.lines(found)))
    return 0 if found["equal"] else 1


def _export(args: argparse.Namespace) -> int:
    with _exported(None if args.url else load(args.config), args.url) as lines:
        _write(lines)
    return 0


@contextmanager
def _exported(config: Config | None, url: str | None) -> Iterator[Iterable[bytes]]:
    """Give the lines of `export data` of a running agent, by its url or as configured, or of one that is stopped."""
    import msgspec

    where = url or (_url(config.api) if config else "")
    lines = _streamed(where, None, "/v1/data", None)
    if lines is not None:
        yield lines
    elif config is None or url:
        raise ValueError(f"{where}: no agent listens there")
    else:
        with _stopped(config) as agent:
            yield (msgspec.json.encode(line) + b"\n" for day in agent.export() for line in day)


def _write(lines: Iterable[bytes]) -> None:
    n = 0
    for n, line in enumerate(lines, 1):
        sys.stdout.buffer.write(line)
        _progress(f"{n:,} lines")
    sys.stdout.buffer.flush()
    _progress(f"{n:,} lines", last=True)


def _merge(args: argparse.Namespace) -> int:
    from monitor.data import Merged

    merged = Merged(args.files, args.slice)
    for path, days, rows in merged.parts:
        print(f"{path}: {rows:,} rows in {days:,} days", file=sys.stderr if args.json else sys.stdout)
    if not args.json:
        print(timeline.HEADER)
    for item in merged.items(args.by):
        print(json.dumps(item) if args.json else timeline.line(item))
    return 0


def _alone(config: Config, decide: Callable[["Agent"], dict[str, Any]]) -> dict[str, Any]:
    """Decide with the agent stopped."""
    from monitor.actions.rollback import PolicyError
    from monitor.agent import Agent

    agent = Agent(config, VERSION)
    with closing(agent.store):
        try:
            return decide(agent)
        except PolicyError as e:
            raise ValueError(str(e)) from None


def _log(args: argparse.Namespace) -> int:
    from monitor.store.log import Log

    config = load(args.config)
    path = config.state / "log.db"
    if not path.exists():
        raise ValueError(f"{path}: there is no journal yet")
    with closing(Log(path)) as log:
        if args.verify or args.expect:
            broken, kept = log.broken_link(args.expect), log.kept_head()
            print(broken or ("every entry follows from the one before" + (f"; the head is {kept[0]}:{kept[1]}" if kept else "")))
            if not broken and not kept:
                print("no head was kept yet: whether the last entry was changed cannot be told", file=sys.stderr)
            return 1 if broken else 0
        for entry in log.journal():
            item = {
                "seq": entry.seq,
                "at": entry.at,
                "who": entry.who,
                "kind": entry.kind,
                "model": entry.model,
                "version": entry.version,
            }
            print(
                json.dumps(item | {"body": entry.body})
                if args.json
                else timeline.line(_item(item, entry.body), sys.stdout.isatty())
            )
    return 0


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("say why")
    return text


def _head(text: str) -> tuple[int, str]:
    seq, _, digest = text.partition(":")
    if not (seq.isdecimal() and re.fullmatch("[0-9a-f]{64}", digest)):
        raise argparse.ArgumentTypeError("write SEQ:HASH as `log --verify` and /v1/state say it")
    return int(seq), digest


def _item(item: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    from monitor.core.days import iso

    return {**item, **body, "at": iso(item["at"]), "entry": item["seq"]}
