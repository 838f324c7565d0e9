"""Alerts and dashboards: the metrics exist, the queries are PromQL, alerts fire when they must, dashboards follow Grafana's rules.

Run by tests/tests/system/deploy.rs. promtool comes from the PATH or from target/tools/debian. The rules for dashboards are those of Grafana's
dashboard-linter, whose Go module the proxy does not serve; each check here says which of its rules it is.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
PROMTOOL = shutil.which("promtool") or ROOT / "target/tools/debian/usr/bin/promtool"
LINTER = shutil.which("dashboard-linter")
UNITS = {"percentunit", "short", "s", "bytes", "Bps", "reqps", "cps", "ops"}
# Labels that Prometheus adds to a metric's own, and labels that rules add.
COMMON_LABELS = {"job", "instance", "namespace", "pod", "le", "__name__"}


def documented():
    """Returns each series' labels, from docs/metrics.md, which is made from the sources."""
    series = {}
    page = (ROOT / "docs/metrics.md").read_text()
    for name, kind, labels in re.findall(r"^\| `(warmpath_\w+)` \| (\w+) \| ([^|]*) \|", page, re.M):
        own = set(labels.replace(",", " ").split())
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            series[name + suffix] = own
    return series


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard):
    """Yields the panels that show something."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels") or ([] if panel["type"] == "row" else [panel])


def expressions():
    """Yields every expression with its place."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for path in DASHBOARDS:
        for panel in panels(json.loads(path.read_text())):
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]


def unknown(expression):
    """Returns the undocumented names in an expression: series, and labels that none of its series has."""
    series = documented()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    named = set(re.findall(r"\bwarmpath[_:][\w:]+", expression)) - {"warmpath_"}
    wrong = {name for name in named if name not in series and name not in recorded}
    known = COMMON_LABELS.union(*(series.get(name, set()) for name in named))
    lists = re.findall(r"\b(?:by|on|ignoring|group_left|without) ?\(([\w, ]*)\)", expression)
    matched = [label for braces in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+) ?=", braces)]
    labels = {label for found in lists for label in found.replace(",", " ").split()} | set(matched)
    return wrong | labels - known


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)


class Monitoring(unittest.TestCase):
    def promtool(self, *args):
        result = run(PROMTOOL, *args)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_rules_are_valid(self):
        self.promtool("check", "rules", RULES)

    def test_alerts_fire_when_they_must_and_not_otherwise(self):
        self.promtool("test", "rules", RULES.with_name("rules-test.yaml"))

    def test_every_alert_is_tested(self):
        tests = yaml.safe_load(RULES.with_name("rules-test.yaml").read_text())["tests"]
        fired = {
            alert["alertname"] for test in tests for alert in test.get("alert_rule_test", []) if alert.get("exp_alerts")
        }
        self.assertEqual({rule["alert"] for rule in rules() if "alert" in rule}, fired)

    def test_every_alert_has_a_runbook_that_names_it_and_every_runbook_an_alert(self):
        pages = set()
        for rule in rules():
            if "alert" in rule:
                page = ROOT / rule["annotations"]["runbook_url"]
                pages.add(page)
                self.assertIn(f"`{rule['alert']}`", page.read_text())
                self.assertIn(rule["labels"]["severity"], ("info", "warning", "critical"))
        self.assertEqual(set((ROOT / "docs/runbooks").glob("*.md")), pages)

    def test_queried_metrics_are_exported(self):
        for where, expression in expressions():
            with self.subTest(where):
                self.assertEqual(unknown(expression), set(), expression)

    def test_a_metric_or_label_that_is_not_exported_is_found(self):
        self.assertEqual(unknown("sum by (nope) (rate(warmpath_router_retries_total[5m]))"), {"nope"})
        self.assertEqual(unknown('warmpath_router_nope{x="1"}'), {"warmpath_router_nope", "x"})
        self.assertEqual(unknown("warmpath:nope:rate5m"), {"warmpath:nope:rate5m"})

    def test_dashboards_are_up_to_date(self):
        result = run(sys.executable, "-B", ROOT / "deploy/grafana/make.py", "--check")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_expressions_of_dashboards_are_promql(self):
        found = [
            {"record": f"test:{idx}", "expr": re.sub(r"\$__(rate_interval|range)", "5m", expression)}
            for idx, (_, expression) in enumerate(expressions())
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"groups": [{"name": "all", "rules": found}]}, file)
            file.flush()
            self.promtool("check", "rules", "--lint=none", file.name)


class Dashboards(unittest.TestCase):
    """The rules of dashboard-linter, and that program itself if it is installed."""

    def setUp(self):
        self.dashboards = [json.loads(path.read_text()) for path in DASHBOARDS]
        self.assertEqual(len(self.dashboards), 3)
        self.panels = [panel for dashboard in self.dashboards for panel in panels(dashboard)]
        self.expressions = [target["expr"] for panel in self.panels for target in panel["targets"]]
        self.assertGreater(len(self.expressions), 60)

    @unittest.skipUnless(LINTER, "dashboard-linter is not installed")
    def test_grafana_s_own_linter_finds_nothing(self):
        for path in DASHBOARDS:
            result = run(LINTER, "lint", "--strict", path)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_data_source_can_be_chosen(self):
        """template-datasource-rule, panel-datasource-rule"""
        for dashboard in self.dashboards:
            variable = dashboard["templating"]["list"][0]
            found = (variable["type"], variable["name"], variable["label"], variable["query"])
            self.assertEqual(found, ("datasource", "datasource", "Data source", "prometheus"))
        for panel in self.panels:
            self.assertEqual(panel["datasource"]["uid"], "${datasource}")
            for target in panel["targets"]:
                self.assertEqual(target["datasource"]["uid"], "${datasource}")

    def test_jobs_and_instances_can_be_chosen(self):
        """template-job-rule, template-instance-rule, template-label-promql-rule, template-on-time-change-reload-rule"""
        for dashboard in self.dashboards:
            variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
            for name in ("job", "instance"):
                variable = variables[name]
                self.assertEqual(variable["type"], "query")
                self.assertEqual((variable["label"], variable["allValue"]), (name.title(), ".+"))
                self.assertTrue(variable["multi"])
                self.assertEqual(variable["refresh"], 2)
                self.assertEqual(variable["datasource"]["uid"], "${datasource}")
                self.assertRegex(variable["query"], r"^label_values\(.+, " + name + r"\)$")

    def test_every_series_is_selected_by_job_and_instance(self):
        """target-job-rule, target-instance-rule"""
        for expression in self.expressions:
            for rest in re.split(r"\bwarmpath_\w+", expression)[1:]:
                self.assertTrue(rest.startswith('{job=~"$job", instance=~"$instance"'), expression)

    def test_rates_take_the_intervals_of_the_dashboard(self):
        """target-rate-interval-rule, target-counter-agg-rule"""
        for expression in self.expressions:
            for function, interval in re.findall(r"(\w+)\([^()\[\]]*\[([^\]]*)\]", expression):
                allowed = {"rate": "$__rate_interval", "increase": "$__range"}
                self.assertEqual(allowed.get(function), interval, expression)
            for function in re.findall(r"(\w*)\(?warmpath_\w+_total\b", expression):
                self.assertIn(function, ("rate", "increase"), expression)

    def test_every_panel_has_a_title_and_a_description(self):
        """panel-title-description-rule, panel-units-rule, panel-no-targets-rule"""
        for panel in self.panels:
            self.assertTrue(panel["title"] and panel["description"] and panel["targets"], panel["title"])
            self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS, panel["title"])
            references = [target["refId"] for target in panel["targets"]]
            self.assertEqual(len(references), len(set(references)))

    def test_dashboards_cannot_be_edited_and_have_different_ids(self):
        """uneditable-dashboard"""
        self.assertEqual({dashboard["editable"] for dashboard in self.dashboards}, {False})
        self.assertEqual(len({dashboard["uid"] for dashboard in self.dashboards}), 3)


if __name__ == "__main__":
    unittest.main()
