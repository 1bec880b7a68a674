"""The two listeners: the api for events, state and policies, and the metrics. They answer from the last Snapshot."""

import asyncio
import contextlib
import hashlib
import hmac
import html
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from monitor.core.days import MATURE, iso
from monitor.core.diagnosis import Diagnosis
from monitor.core.events import DAY, Ints
from monitor.core.intervals import Measured
from monitor.core.metrics import METRICS, Estimate, curves
from monitor.core.metrics.calibration import ece_by_bins, reliability, survives, top_label_ece
from monitor.core.metrics.confusion import errors_at_high_confidence
from monitor.core.metrics.inputs import Cell, Shift
from monitor.core.readings import Reading
from monitor.core.snapshot import Detection, Snapshot, Version
from monitor.series import CONTENT_TYPE
from monitor.timeline import expected


class Answer(Protocol):
    """What became of a POST; `refused` names why nothing of it was taken, else it is empty."""

    @property
    def status(self) -> int:
        """Return the HTTP status."""

    @property
    def body(self) -> bytes:
        """Return the JSON body."""

    @property
    def refused(self) -> str:
        """Return the reason."""


class Source(Protocol):
    """What takes the bodies of POSTs."""

    max_body: int

    async def receive(self, kind: str, content_type: str, encoding: str, body: bytes | None) -> Answer:
        """Return the answer, after the commit; body None was larger than `max_body`."""


class Api(Protocol):
    """What the listeners need of the program."""

    @property
    def tokens(self) -> Mapping[str, tuple[tuple[str, str], ...] | None]:
        """Return (owner, token) of each token by what it is for, None where none is needed."""

    @property
    def source(self) -> Source | None:
        """Return the http source, None when the configuration has none."""

    async def fresh(self) -> Snapshot:
        """Return the snapshot of the last tick."""

    @property
    def metrics(self) -> bytes:
        """Return the rendered metrics."""

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """Return what happened since the start."""

    def refused(self, reason: str) -> None:
        """Count a request of which nothing was taken."""

    async def ask(self, command: str, **given: Any) -> Any:
        """Run a command in the thread that owns the store.

        Raises LookupError (there is no such thing), ValueError (it cannot be done) and RuntimeError (not now).
        """


class Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process before the agent has drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the agent."""
        yield


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a body as JSON."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def problem(status: int, detail: str) -> HTTPException:
    """Return an error that becomes a JSON answer."""
    return HTTPException(status, detail)


async def _error(_: Request, e: Exception) -> Response:
    assert isinstance(e, HTTPException)
    return json_response({"error": e.detail}, e.status_code, dict(e.headers or {}))


def _allowed(api: Api, request: Request, role: str) -> str | None:
    """Return the owner of the token that a request has, None where it needs none."""
    known = api.tokens[role]
    if known is None:
        return None
    given = request.headers.get("authorization", "")
    if not given.startswith("Bearer "):
        raise HTTPException(401, f"send the {role} token as Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})
    # All are compared, as digests of one length: the time it takes tells neither how much of a token is right nor whose.
    digest = hashlib.sha256(given[7:].encode()).digest()
    owners = [owner for owner, token in known if hmac.compare_digest(hashlib.sha256(token.encode()).digest(), digest)]
    if not owners:
        raise problem(403, f"this is not the {role} token")
    return owners[0]


async def _signed(api: Api, request: Request) -> tuple[dict[str, Any], str, str]:
    """Return the JSON object of a request that decides something, who signs it, and why.

    With a token that is the token's owner: nobody signs as another.
    """
    owner = _allowed(api, request, "decide")
    body = await _body(request, 1 << 20)
    try:
        given = msgspec.json.decode(body or b"{}")
        reason, who = given.get("reason") or "", given.get("who") or ""
    except (msgspec.DecodeError, AttributeError):
        raise problem(400, "send a JSON object") from None
    if not isinstance(reason, str) or not reason.strip():
        raise problem(400, 'say why: "reason" must be a text')
    if not isinstance(who, str) or (owner is not None and who not in ("", owner)):
        raise problem(400, '"who" must be a text' if owner is None else f'"who" is said by the token, which is that of {owner}')
    return given, owner or who or "api", reason


async def _body(request: Request, limit: int) -> bytes | None:
    """Return the body, None as soon as it is larger than the limit."""
    if int(request.headers.get("content-length") or 0) > limit:
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def api_app(api: Api) -> Starlette:
    """Return the api: events in, state, policies and decisions."""

    def receive(kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def post(request: Request) -> Response:
            _allowed(api, request, "ingest")
            if api.source is None:
                raise problem(404, "the configuration has no http source; add `- http: {}` to sources")
            body = await _body(request, api.source.max_body)
            head = request.headers
            answer = await api.source.receive(kind, head.get("content-type", ""), head.get("content-encoding", ""), body)
            if answer.refused:
                api.refused(answer.refused)
            headers = {"Retry-After": "1"} if answer.status in (429, 503) else None
            return Response(answer.body, answer.status, headers, "application/json")

        return post

    async def state(_: Request) -> Response:
        return json_response(state_of(await api.fresh()))

    async def timeline(request: Request) -> Response:
        since = _whole(request, "since", 0)
        return json_response([item for item in api.timeline if item["seq"] >= since])

    def of_window(answer: Callable[[Snapshot, Version, dict[str, str]], dict[str, Any]]) -> Callable[..., Awaitable[Response]]:
        async def get(request: Request) -> Response:
            snapshot = await api.fresh()
            return json_response(answer(snapshot, _version(snapshot, request), dict(request.query_params)))

        return get

    async def features(request: Request) -> Response:
        return json_response(inputs_of(_version(await api.fresh(), request)))

    async def alerts(request: Request) -> Response:
        found = [a for a in state_of(await api.fresh())["alerts"] if a["model"] == request.path_params["model"]]
        return json_response(found)

    async def days(request: Request) -> Response:
        if request.query_params.get("by") == "month":
            return json_response(await _ask(api, "months", name=request.path_params["model"]))
        model = request.path_params["model"]
        return json_response([{"version": v, "day": iso(d * DAY)[:10]} for m, v, d in (await api.fresh()).closed if m == model])

    def of_model(command: str) -> Callable[[Request], Awaitable[Response]]:
        async def get(request: Request) -> Response:
            return json_response(await _ask(api, command, name=request.path_params["model"]))

        return get

    async def classes(request: Request) -> Response:
        query = request.query_params
        window = query.get("window", "28d")
        if window not in MATURE:
            raise problem(400, f"window must be one of {', '.join(MATURE)}, found {window!r}")
        given = {"version": query.get("version"), "window": window}
        return json_response(await _ask(api, "classes", name=request.path_params["model"], **given))

    async def compare(request: Request) -> Response:
        given = {"version": request.query_params.get("version"), "other": request.query_params.get("with")}
        return json_response(await _ask(api, "compare", name=request.path_params["model"], **given))

    async def policy(request: Request) -> Response:
        found = await _ask(api, "policy", name=request.path_params["model"], version=request.path_params.get("version"))
        tag = f'"{found["checksum"]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return json_response(found, headers=headers)

    async def calibrate(name: str, version: str | None, who: str, reason: str) -> dict[str, Any]:
        begun = await _ask(api, "calibrate", name=name, version=version, who=who, reason=reason)
        while (found := await _ask(api, "calibrated", begun=begun)) is None:
            await asyncio.sleep(0.1)
        return dict(found)

    async def outbox(_: Request) -> Response:
        return json_response(await _ask(api, "outbox"))

    def redeliver(done: str) -> Callable[[Request], Awaitable[Response]]:
        async def post(request: Request) -> Response:
            _, who, reason = await _signed(api, request)
            return json_response(await _ask(api, "redeliver", ident=request.path_params["id"], done=done, who=who, reason=reason))

        return post

    def change(kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def post(request: Request) -> Response:
            given, who, reason = await _signed(api, request)
            threshold = given.get("threshold")
            if kind == "activate" and given.get("policy") is None and type(threshold) not in (int, float):
                raise problem(400, 'send "threshold" (a number) or "policy" (a whole policy)')
            if not isinstance(given.get("version"), str | None):
                raise problem(400, '"version" must be a text')
            wanted = {"threshold": threshold, "policy": given.get("policy")} if kind == "activate" else {}
            name, version = request.path_params["model"], given.get("version")
            if kind == "calibrate":
                return json_response(await calibrate(name, version, who, reason))
            return json_response(await _ask(api, kind, name=name, version=version, who=who, reason=reason, **wanted))

        return post

    async def proposals(_: Request) -> Response:
        return json_response(await _ask(api, "proposals"))

    async def answer(request: Request) -> Response:
        given, who, reason = await _signed(api, request)
        approve = given.get("approve")
        if not isinstance(approve, bool):
            raise problem(400, 'send "approve": true or false')
        return json_response(
            await _ask(api, "answer", proposal=request.path_params["id"], approve=approve, who=who, reason=reason)
        )

    async def decisions(request: Request) -> Response:
        limit, since = _whole(request, "limit", 100), _whole(request, "since", 0)
        if not 1 <= limit <= 1000:
            raise problem(400, f"limit must be from 1 to 1000, found {limit}")
        return json_response(await _ask(api, "decisions", name=request.path_params["model"], limit=limit, since=since))

    async def reload(request: Request) -> Response:
        _, who, reason = await _signed(api, request)
        return json_response(await _ask(api, "reload", who=who, reason=reason))

    async def verify(request: Request) -> Response:
        _allowed(api, request, "decide")  # it reads every row
        return await _stream(api, "verify")

    async def data(_: Request) -> Response:
        return await _stream(api, "data")

    async def page(_: Request) -> Response:
        try:
            decided = await api.ask("decisions", name=None, limit=10, since=0)
        except RuntimeError:  # the store fails, which is no reason to show nothing
            decided = []
        return HTMLResponse(page_of(await api.fresh(), decided, await api.ask("proposals")))

    routes = [
        Route("/", page),
        Route("/v1/predictions", receive("predictions"), methods=["POST"]),
        Route("/v1/labels", receive("labels"), methods=["POST"]),
        Route("/v1/state", state),
        Route("/v1/timeline", timeline),
        Route("/v1/verify", verify, methods=["POST"]),
        Route("/v1/data", data),
        Route("/v1/proposals", proposals),
        Route("/v1/proposals/{id:int}", answer, methods=["POST"]),
        Route("/v1/outbox", outbox),
        Route("/v1/outbox/{id}/retry", redeliver("retried"), methods=["POST"]),
        Route("/v1/outbox/{id}/discard", redeliver("discarded"), methods=["POST"]),
        Route("/v1/models/{model}/reliability", of_window(reliability_of)),
        Route("/v1/models/{model}/curves", of_window(curves_of)),
        Route("/v1/models/{model}/features", features),
        Route("/v1/models/{model}/alerts", alerts),
        Route("/v1/models/{model}/days", days),
        Route("/v1/models/{model}/decisions", decisions),
        Route("/v1/models/{model}/classes", classes),
        Route("/v1/models/{model}/compare", compare),
        Route("/v1/models/{model}/audit", of_model("audit")),
        Route("/v1/models/{model}/delays", of_model("delays")),
        Route("/v1/models/{model}/policy", policy),
        Route("/v1/models/{model}/versions/{version}/policy", policy),
        Route("/v1/models/{model}/activate", change("activate"), methods=["POST"]),
        Route("/v1/models/{model}/rollback", change("rollback"), methods=["POST"]),
        Route("/v1/models/{model}/calibrate", change("calibrate"), methods=["POST"]),
        Route("/-/reload", reload, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _error})


def metrics_app(api: Api) -> Starlette:
    """Return the metrics and the probes; a probe says only that the process answers, never how the models are."""

    async def metrics(_: Request) -> Response:
        return Response(api.metrics, 200, {"Content-Type": CONTENT_TYPE})

    async def ok(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/metrics", metrics), Route("/-/healthy", ok), Route("/-/ready", ok)])


async def _ask(api: Api, command: str, **given: Any) -> Any:
    try:
        return await api.ask(command, **given)
    except LookupError as e:
        raise problem(404, str(e.args[0])) from None
    except ValueError as e:
        raise problem(409, str(e)) from None
    except RuntimeError as e:
        raise problem(503, str(e)) from None


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise problem(400, f"{name} must be a number, found {text!r}")
    return int(text)


async def _stream(api: Api, command: str) -> Response:
    """Return the items of long work as NDJSON while it goes on; when it has to end early the last line says why."""
    steps = await _ask(api, command)

    async def lines() -> AsyncIterator[bytes]:
        try:
            while (items := await api.ask("more", steps=steps)) is not None:
                yield b"".join(msgspec.json.encode(item) + b"\n" for item in items)
        except RuntimeError as e:
            yield msgspec.json.encode({"error": str(e)}) + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _version(s: Snapshot, request: Request) -> Version:
    name, version = request.path_params["model"], request.query_params.get("version")
    found = [v for v in s.versions if v.model == name and (v.version == version or (version is None and v.role == "live"))]
    if not found:
        targets = sorted({v.model for v in s.versions if v.model.startswith(f"{name}:")})
        there = f"; there are {', '.join(targets)}" if targets else ""
        raise problem(404, f"no version {version or 'that is live'} of model {name}{there}")
    if len(found) > 1:
        raise problem(400, f"say which version: {', '.join(v.version for v in found)}")
    return found[0]


def number(e: Estimate | None) -> dict[str, Any] | None:
    """Return an estimate as JSON: value and interval, or the reason why there is none."""
    if e is None:
        return None
    if e.reason:
        return {"n": e.n, "reason": e.reason}
    found = {"value": e.value, "low": e.low, "high": e.high, "n": e.n} | expected(e)
    return found | {"interval_reason": e.interval_reason} if e.interval_reason else found


def _diagnosis(d: Diagnosis | None) -> dict[str, Any] | None:
    if d is None:
        return None
    since = None if d.since is None else iso(d.since)
    return {"code": d.code, "advice": d.action, "since": since, "confirmed": d.confirmed, "words": d.words}


def _detection(d: Detection) -> dict[str, Any]:
    since = None if d.since is None else iso(d.since * DAY)[:10]
    said = {"detector": d.detector, "evidence": number(d.evidence), "limit": d.limit, "effect": number(d.effect)}
    return {**said, "looks": d.looks, "since": since, "slices": dict(d.slices), "day_to_day_variance": d.lr}


def state_of(s: Snapshot) -> dict[str, Any]:
    """Return the snapshot as JSON."""
    estimates: dict[tuple[str, str], dict[str, Any]] = {}
    for e in s.estimates:
        where = estimates.setdefault((e.key.model, e.key.version), {}).setdefault(e.key.slice, {})
        said = where.setdefault(e.basis if e.basis == "estimated" else e.window or e.basis, {})
        said["calibrated_" + e.metric if e.basis == "calibrated" else e.metric] = number(e)
    return {
        "at": None if s.at is None else iso(s.at),
        "problem": s.problem or None,
        "journal": {"seq": s.journal[0], "hash": s.journal[1] or None},
        "versions": [
            {
                "model": v.model,
                "version": v.version,
                "role": v.role,
                "baseline": v.baseline,
                "last_event": iso(v.last_event),
                "waiting": v.waiting,
                "known_so_far": v.known,
                "waiting_days": [iso(d * DAY)[:10] for d in v.waiting_days],
                "matured": v.matured,
                "never_labelled": v.never_labelled,
                "coverage": v.coverage,
                "completeness": v.completeness,
                "horizon_seconds": v.horizon / 1000,
                "suggested_horizon_seconds": None if v.suggested.horizon is None else v.suggested.horizon / 1000,
                "late_labels_share": v.suggested.late,
                "policy": v.policy and v.policy.id,
                "threshold": v.threshold,
                "following": dict(v.following),
                "verdicts": dict(v.verdicts),
                "detectors": {d.rule: _detection(d) for d in v.detections},
                "estimates": estimates.get((v.model, v.version), {}),
            }
            for v in s.versions
        ],
        "alerts": [
            {
                "model": a.model,
                "version": a.version,
                "rule": a.rule,
                "severity": a.severity,
                "state": a.state,
                "since": iso(a.since),
                "observed": number(a.observed),
                "expected": number(a.expected),
                "slices": dict(a.slices),
                "diagnosis": _diagnosis(s.diagnoses.get(a.key)),
            }
            for a in s.alerts
        ],
        "counters": [{"name": name, **dict(labels), "value": value} for (name, labels), value in s.counters.items()],
    }


_CALIBRATION = {name for name, metric in METRICS.items() if metric.about == "seen"}
"""What is said beside a reliability diagram: of the same rows."""
_ECE_LIMITS = {("ece", "low"), ("ece_width10", "low")}
"""Limits of rules that ask how large the calibration error is at least."""


def _reading_of(s: Snapshot, v: Version, query: dict[str, str]) -> tuple[dict[str, Any], Reading, Ints | None]:
    """Return which mature window of which slice was asked for, its reading and the edges of its calibration bins."""
    window, name = query.get("window", "28d"), query.get("slice", "all")
    scores = query.get("scores", "model")
    if scores not in ("model", "served"):
        raise problem(400, f"scores must be model or served, found {scores!r}")
    calibrated = scores == "served" and v.policy is not None and v.policy.calibrates
    of = s.calibrated if calibrated else {where: (reading, v.edges) for where, reading in s.readings.items()}
    found = [r for (key, w), r in of.items() if key[:3] == (v.model, v.version, name) and w == window]
    if not found:
        raise problem(
            404, f"no mature window {window} of slice {name}; windows are 7d (all) and 28d, slices {', '.join(v.slices)}"
        )
    return {"model": v.model, "version": v.version, "slice": name, "window": window, "scores": scores}, *found[0]


def reliability_of(s: Snapshot, v: Version, query: dict[str, str]) -> dict[str, Any]:
    """Return the reliability diagram of a mature window, always with all its bins, and whether other bins would say the same."""
    form = query.get("bins", "frozen")
    if form not in ("frozen", "width10"):
        raise problem(400, f"bins must be frozen or width10, found {form!r}")
    where, reading, edges = _reading_of(s, v, query)
    if form == "frozen" and edges is None:
        raise problem(404, "there is no baseline, so no frozen bins; ask for bins=width10")
    if reading.reason:
        return where | {"bins": [], "reason": reading.reason}
    limits = (limit for rule in v.rules for limit in rule.fires if (limit.metric, limit.end) in _ECE_LIMITS)
    limit = next((limit.high for limit in limits if limit.high is not None), 0.0)
    by_bins = ece_by_bins(reading, edges)
    return where | {
        "form": form,
        "n": int(reading.n.sum()),
        "bins": reliability(reading, edges, form == "width10"),
        "ece_by_bins": {name: _measured(e) for name, e in by_bins.items()},
        "limit": limit,
        "survives": survives(by_bins, limit),
        "ece_top_label": top_label_ece(reading),
        "errors_at_high_confidence": _measured(errors_at_high_confidence(reading)),
        "estimates": {
            e.metric: number(e)
            for e in s.estimates
            if e.key[:3] == (v.model, v.version, where["slice"])
            and e.window == where["window"]
            and e.metric in _CALIBRATION
            and (e.basis == "calibrated") == (reading.basis == "calibrated")
        },
    }


def _measured(found: Measured | str) -> dict[str, Any]:
    """Return a measured value as JSON, or the reason why there is none."""
    if isinstance(found, str):
        return {"reason": found}
    return {name: x for name, x in found._asdict().items() if x != ""}


def curves_of(s: Snapshot, v: Version, query: dict[str, str]) -> dict[str, Any]:
    """Return what other thresholds would have done in a mature window, with a reason for what is undefined."""
    where, reading, _ = _reading_of(s, v, query)
    now = v.threshold if v.policy is None or reading.basis == "calibrated" else v.policy.cut
    reason = reading.reason or ("" if len(reading.n) else "no_events")
    if reason:
        return where | {"reason": reason}

    def or_reason(found: Any) -> Any:
        return {"reason": found} if isinstance(found, str) else found

    return where | {
        "n": int(reading.n.sum()),
        "roc": or_reason(curves.roc(reading)),
        "precision_recall": or_reason(curves.precision_recall(reading)),
        "counts": curves.counts_at(reading, curves.STEPS),
        "current": or_reason("no_threshold" if now is None else curves.counts_at(reading, [now])[0]),
    }


def inputs_of(v: Version) -> dict[str, Any]:
    """Return how features and the mix of slices differ from the baseline, by window."""
    windows = {
        i.window: {
            "day": iso(i.day * DAY)[:10] if i.day else None,
            "features": {s.name: _shift(s, "bins") for s in i.features},
            "segments": {s.name: _shift(s, "slices") for s in i.segments},
        }
        for i in v.inputs
    }
    return {"model": v.model, "version": v.version, "role": v.role, "windows": windows}


def _shift(s: Shift, cells: str) -> dict[str, Any]:
    size = {"reason": s.reason} if s.reason else {"psi": s.psi, "psi_null": s.psi_null, "js": s.js}
    apart = {what: _share(c) for what, c in (("missing", s.missing), ("unseen", s.unseen)) if c is not None}
    return {"n": s.n, **size, **apart, cells: [{"name": c.name, **_share(c)} for c in s.cells]}


def _share(c: Cell) -> dict[str, float | None]:
    return {"share": c.share.value, "low": c.share.low, "high": c.share.high, "baseline": c.baseline}


_COLUMNS = ("flagged_share", "prevalence", "mean_score", "bias", "ece", "brier", "roc_auc", "recall", "precision")
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #1b1f24; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; text-align: right; white-space: nowrap }
th { background: #f6f8fa }
td:first-child, th:first-child { text-align: left }
small { color: #636c76 }
.firing { color: #cf222e; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } th { background: #161b22 } th, td { border-color: #30363d }
}
"""


def page_of(s: Snapshot, decided: list[dict[str, Any]], proposals: list[dict[str, Any]]) -> str:
    """Return the page: models, estimates, alerts, and what was decided or waits for a decision, as plain tables."""
    text = html.escape
    rows = []
    for v in s.versions:
        mine = [e for e in s.estimates if e.key[:3] == (v.model, v.version, "all") and e.window == "28d"]
        found = {e.metric: e for e in mine if e.basis != "calibrated"}
        cells = "".join(f"<td>{_cell(found.get(name))}</td>" for name in _COLUMNS)
        policy = (
            "–" if v.threshold is None else f"{v.threshold:g}" + (f"<br><small>{text(v.policy.id)}</small>" if v.policy else "")
        )
        name = f"{text(v.model)}<br><small>{text(v.version)}, {v.role}</small>"
        rows.append(
            f"<tr><td>{name}</td><td>{v.waiting:,}<br><small>{v.known:,} labelled</small></td><td>{policy}</td>{cells}</tr>"
        )
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in _COLUMNS)
    alerts = "".join(
        f"<tr><td class='{a.state}'>{a.state}</td><td>{text(a.model)} {text(a.version)}</td><td>{text(a.rule)}</td>"
        f"<td>{a.severity}</td><td>{iso(a.since)}</td><td>{_cell(a.observed)}</td></tr>"
        for a in s.alerts
    )
    none = "<tr><td colspan='6'>No alert is pending or firing.</td></tr>"
    empty = f"<tr><td colspan='{len(_COLUMNS) + 3}'>No events yet.</td></tr>"
    waiting = "".join(
        f"<tr><td>{p['proposal']}</td><td>{text(p['model'])} {text(p['version'])}</td>"
        f"<td>{text(p['action'])} for {text(p['rule'])}</td><td>{p['at']}</td>"
        f"<td><code>scorewatch approve {p['proposal']} --reason TEXT</code></td></tr>"
        for p in proposals
    )
    decisions = "".join(
        f"<tr><td>{d['at']}</td><td>{text(d['model'])} {text(d['version'])}</td><td>{d['kind'].replace('_', ' ')}</td>"
        f"<td>{text(d.get('policy') or '–')}</td><td>{text(d['who'])}</td><td>{text(d['words'])}</td></tr>"
        for d in decided
    )
    nothing = "<tr><td colspan='6'>Nothing was decided yet.</td></tr>"
    asks = "<tr><th>proposal</th><th>model</th><th>what</th><th>since</th><th>to approve it (or --reject)</th></tr>"
    at = "before the first tick" if s.at is None else f"at {iso(s.at)}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<meta name="viewport" content="width=device-width"><title>Scorewatch</title><style>{_STYLE}</style></head>
<body><h1>Scorewatch</h1>
<p>State {at}. Estimates are of the last 28 mature days, with their intervals.</p>
<table><tr><th>model</th><th>waiting</th><th>threshold</th>{head}</tr>{"".join(rows) or empty}</table>
<h2>Alerts</h2>
<table><tr><th>state</th><th>model</th><th>rule</th><th>severity</th><th>since</th><th>observed</th></tr>{alerts or none}</table>
{f"<h2>Waiting for approval</h2><table>{asks}{waiting}</table>" if waiting else ""}
<h2>Decisions</h2>
<table><tr><th>when</th><th>model</th><th>what</th><th>policy</th><th>who</th><th>why</th></tr>{decisions or nothing}</table>
</body></html>
"""


def _cell(e: Estimate | None) -> str:
    if e is None:
        return "–"
    if e.value is None:
        return f"<small>{e.reason.replace('_', ' ')}</small>"
    interval = "" if e.low is None or e.high is None else f"<br><small>{e.low:.3f} to {e.high:.3f}</small>"
    return f"{e.value:.3f}{interval}"


async def serve(apps: list[tuple[Starlette, Any]], stop: asyncio.Event) -> None:
    """Serve each app on its bound socket until `stop` is set and the requests in progress are answered."""
    servers = [
        Server(
            uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="off", timeout_graceful_shutdown=10)
        )
        for app, _ in apps
    ]
    running = [asyncio.create_task(server.serve(sockets=[sock])) for server, (_, sock) in zip(servers, apps, strict=True)]
    await stop.wait()
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*running)
