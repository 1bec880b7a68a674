"""The commands. Exit codes: 0 done, 1 it cannot be done, 2 wrong usage or configuration."""

import argparse
import json
import logging
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from getpass import getuser
from importlib.metadata import version
from pathlib import Path
from typing import Any

from monitor import timeline
from monitor.config import Address, Config, ConfigError, FileSource, describe, effective, load
from monitor.store import StateError

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
    chosen.add_argument("--threshold", type=float, metavar="T", help="a new policy with this threshold")
    chosen.add_argument("--policy", type=Path, metavar="FILE", help="a policy as JSON")
    rollback = add("rollback", _change, "Go back to the last policy in good standing.")
    for made, kind in ((activate, "activate"), (rollback, "rollback")):
        configured(made)
        made.set_defaults(kind=kind)
        made.add_argument("model", metavar="MODEL")
        made.add_argument("--version", metavar="V", help="needed when several versions are live")
        made.add_argument("--reason", required=kind == "activate", default="by hand", metavar="TEXT")

    journal = add("log", _log, "Print the journal: alerts, decisions, policy changes.")
    configured(journal)
    journal.add_argument("--json", action="store_true", help="one JSON object a line")
    journal.add_argument("--verify", action="store_true", help="check that no entry was changed or taken out")
    return parser


def _run(args: argparse.Namespace) -> int:
    from monitor.run import run

    config = load(args.config)

    def started(api: str, metrics: str) -> None:
        print(f"scorewatch {VERSION} listens on {api} (events, state) and {metrics}/metrics, state in {config.state}", flush=True)

    run(config, VERSION, started)
    return 0


def _check(args: argparse.Namespace) -> int:
    from monitor import check

    config = load(args.config)
    sizing, room = check.size_of(config), check.room_of(config.state)
    misfits = check.misfits(config, sizing, room)
    if args.json:
        print(json.dumps({"configuration": effective(config), "plan": check.as_dict(sizing, room), "misfits": misfits}))
    else:
        # As comments the plan leaves the output a configuration.
        print(describe(config) + "\n".join(f"# {line}".rstrip() for line in check.lines(config, sizing, room)))
    if misfits:
        raise ConfigError("\n".join(misfits))
    return 0


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
    body: dict[str, Any] = {"version": args.version, "reason": args.reason, "who": getuser()}
    if args.kind == "activate":
        body |= {"threshold": args.threshold} if args.policy is None else {"policy": json.loads(args.policy.read_text())}
    done = _ask(config, f"/v1/models/{args.model}/{args.kind}", body)
    if done is None:
        done = _change_alone(config, args, body)
    print(f"{args.model} {done['version']}: policy {done['policy']} (threshold {done['threshold']:g}) is current")
    if done.get("pending"):
        print("current.json could not be written yet; the agent tries again at its next tick", file=sys.stderr)
    return 0


def _ask(config: Config, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the running agent's answer, None when no agent listens; raise ValueError with its message when it refuses."""
    request = urllib.request.Request(_url(config.api) + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    if config.tokens.decide:
        request.add_header("Authorization", f"Bearer {config.tokens.decide}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as e:
        with e:
            raise ValueError(json.load(e).get("error", str(e))) from None
    except urllib.error.URLError:
        return None


def _url(address: Address) -> str:
    return f"http://{address}"


def _change_alone(config: Config, args: argparse.Namespace, body: dict[str, Any]) -> dict[str, Any]:
    """Change the policy with the agent stopped."""
    from monitor.actions.rollback import PolicyError
    from monitor.agent import Agent

    agent = Agent(config, VERSION)
    with closing(agent.store):
        try:
            given = {k: body.pop(k) for k in ("threshold", "policy") if k in body}
            return agent.command(args.kind, args.model, body["version"], body["who"], body["reason"], **given)
        except PolicyError as e:
            raise ValueError(str(e)) from None


def _log(args: argparse.Namespace) -> int:
    from monitor.store.log import Log

    config = load(args.config)
    path = config.state / "log.db"
    if not path.exists():
        raise ValueError(f"{path}: there is no journal yet")
    with closing(Log(path)) as log:
        if args.verify:
            broken = log.broken_link()
            print(
                "every entry follows from the one before"
                if broken is None
                else f"entry {broken} does not follow from the one before"
            )
            return 0 if broken is None else 1
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


def _item(item: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    from monitor.core.days import iso

    return {**item, **body, "at": iso(item["at"])}
