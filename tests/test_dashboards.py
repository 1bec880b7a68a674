"""The committed dashboard: generated, readable by Grafana's own model, complete, and about series that exist."""

import json
import re
import runpy
from pathlib import Path

import promql_parser
import pytest

from monitor.core.metrics import METRICS
from monitor.series import SERIES

# Dashboards of the second schema need Grafana 12; the first one is read by every Grafana in use.
pytestmark = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "grafana" / "dashboards" / "model.json").read_text()
BOARD = json.loads(TEXT)
PANELS = {panel["title"]: panel for panel in BOARD["panels"]}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"none", "short", "percentunit", "s"}
OUTCOMES = {f"scorewatch_{name}" for name, m in METRICS.items() if m.outcomes}


def expressions(panel):
    """Return what a panel asks."""
    return [target["expr"] for target in panel["targets"]]


def filled(expr):
    """Return an expression with Grafana's variables filled in."""
    return expr.replace("$__rate_interval", "1m").replace("$model", "m").replace("$version", "v")


def test_the_committed_dashboard_is_what_the_code_makes():
    """`make dashboards` gives the committed file, byte by byte, and again at a second call."""
    built = runpy.run_path(str(ROOT / "grafana" / "build.py"))
    assert built["text"]() == TEXT
    assert built["text"]() == TEXT


def test_grafanas_model_of_a_dashboard_loses_nothing():
    """Read by the SDK and written again the dashboard is the same, so no option is misspelt or misplaced."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(BOARD))) == BOARD


def test_the_dashboard_cannot_be_edited_and_has_a_fixed_uid():
    """It is provisioned: fixed uid, not editable, its links in the rules lead to it."""
    assert (BOARD["uid"], BOARD["editable"], BOARD.get("id")) == ("scorewatch-model", False, None)
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    links = re.findall(r"dashboard_url: \S+/d/([\w-]+)\?(.*)$", rules, re.MULTILINE)
    assert {(uid, *re.findall(r"var-(\w+)=", query)) for uid, query in links} == {(BOARD["uid"], "model", "version")}


def test_the_variables_are_the_data_source_the_model_and_its_version():
    """Nothing is tied to one Grafana; model and version are read anew when the time range changes."""
    found = [(v["name"], v["type"], v["label"], v.get("refresh")) for v in BOARD["templating"]["list"]]
    assert found == [
        ("datasource", "datasource", "Data source", None),
        ("model", "query", "Model", 2),
        ("version", "query", "Version", 2),
    ]
    for v in BOARD["templating"]["list"][1:]:
        assert v["datasource"] == SOURCE
        assert set(re.findall(r"scorewatch_\w+", v["query"]["query"])) <= SERIES.keys()


@pytest.mark.parametrize("title", PANELS)
def test_every_panel_says_what_it_shows(title):
    """A panel has a title of its own, a description that is a sentence, a unit, the data source, and a word for no data."""
    panel = PANELS[title]
    defaults = panel["fieldConfig"]["defaults"]
    assert len(PANELS) == len(BOARD["panels"])
    assert panel["description"].endswith(".")
    assert defaults["unit"] in UNITS
    assert defaults["noValue"]
    assert panel["datasource"] == SOURCE
    assert [t["datasource"] for t in panel["targets"]] == [SOURCE] * len(panel["targets"])
    refs = [t["refId"] for t in panel["targets"]]
    assert len(set(refs)) == len(refs)


def test_panels_that_need_labels_say_that_they_wait_for_them():
    """Where a series needs outcomes or maturity, no data means waiting for labels."""
    needs = OUTCOMES | {n for n in SERIES if n.startswith("scorewatch_reliability_")}
    needs |= {"scorewatch_never_labelled", "scorewatch_label_coverage", "scorewatch_label_completeness"}
    waiting = {t for t, p in PANELS.items() if needs & set(re.findall(r"scorewatch_\w+", " ".join(expressions(p))))}
    assert waiting == {t for t, p in PANELS.items() if p["fieldConfig"]["defaults"]["noValue"] == "waiting for labels"}
    assert len(waiting) == 9


def test_a_nowcast_is_never_taken_for_a_measurement():
    """Nowcasts are shown beside what is mature, each line under a name that says so, in a colour of its own."""
    found = {(t["legendFormat"], title) for title, p in PANELS.items() for t in p["targets"] if "_nowcast_" in t["expr"]}
    names = {f"nowcast, not mature{end}" for end in ("", " low", " high")}
    assert found == {(name, title) for name in names for title in ("Recall", "Precision")}
    for title in ("Recall", "Precision"):
        assert "nowcast is no measurement" in PANELS[title]["description"]
        colours = {o["matcher"]["options"]: o["properties"][0] for o in PANELS[title]["fieldConfig"]["overrides"]}
        assert colours["/^nowcast/"] == {"id": "color", "value": {"mode": "fixed", "fixedColor": "orange"}}


def test_all_that_is_known_of_how_labels_come_is_shown():
    """Every series about the coming of labels is in a panel."""
    shown = set(re.findall(r"scorewatch_\w+", " ".join(e for p in PANELS.values() for e in expressions(p))))
    versions = ("waiting_predictions", "known_so_far", "matured", "never_labelled", "label_coverage", "label_completeness")
    horizons = ("horizon_seconds", "suggested_horizon_seconds", "late_labels_share")
    agents = ("labels_held", "labels_dropped_total", "not_waiting_total", "waiting_overflow_total")
    assert shown >= {f"scorewatch_{name}" for name in (*versions, *horizons, *agents)}


@pytest.mark.parametrize("title", PANELS)
def test_every_query_is_promql_over_series_and_labels_of_the_contract(title):
    """A query parses; its series and the labels it selects and sums by exist; counters are read through increase alone."""
    for expr in expressions(PANELS[title]):
        promql_parser.parse(filled(expr))
        (name,) = re.findall(r"scorewatch_\w+", expr)
        series = SERIES[re.sub(r"_bucket$", "", name) if name not in SERIES else name]
        labels = set(re.findall(r"(\w+)=", expr)) | set(re.findall(r"\w+", "".join(re.findall(r"by \((.*?)\)", expr))))
        assert labels - {"le"} <= set(series.labels)
        rated = "increase(" in expr and "[$__rate_interval]" in expr
        assert rated == (series.kind != "gauge")
        assert ("model" not in series.labels) or 'model="$model", version="$version"' in expr


def test_marks_on_the_panels_are_promql_over_what_exists():
    """Alerts come from the shipped rule, policy changes from the contract."""
    for mark in BOARD["annotations"]["list"]:
        promql_parser.parse(filled(mark["expr"]))
        assert mark["datasource"] == SOURCE
        assert set(re.findall(r"scorewatch_\w+", mark["expr"])) <= SERIES.keys()
        for alert in re.findall(r'alertname="(\w+)"', mark["expr"]):
            assert f"alert: {alert}\n" in re.sub(r" #.*", "", (ROOT / "deploy" / "prometheus" / "rules.yml").read_text())


def test_runbooks_speak_of_what_exists():
    """A name in italics is that of a panel, or its beginning; series and links lead somewhere."""
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        said = page.read_text()
        for name in re.findall(r"(?<![*\w])\*([^*]+)\*(?!\*)", said):
            assert any(title.startswith(re.sub(r"\s+", " ", name)) for title in PANELS), name
        assert set(re.findall(r"scorewatch_\w+", said)) <= SERIES.keys()
        assert all((page.parent / link).exists() for link in re.findall(r"\]\(([^)]+)\)", said))


def test_panels_do_not_overlap():
    """Every place of the grid belongs to one panel, and none reaches over its right end."""
    places = []
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        places += [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(places) == len(set(places))
