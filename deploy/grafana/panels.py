"""Functions that make the dashboards' panels.

In an expression `{}` stands for the dashboard's own selection of jobs and instances, `{tier="x"}` for that and more, and `[]` for the
interval of a rate.
"""

import re

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

R, W, H = "warmpath_router_", "warmpath_worker_", "warmpath_host_"
DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
SELECTION = 'job=~"$job", instance=~"$instance"'


def complete(expression):
    """Returns an expression with the dashboard's selection and the interval in their places."""
    selected = re.sub(r"(warmpath_\w+)\{", lambda match: f"{match[1]}{{{SELECTION}, ", expression)
    return selected.replace(", }", "}").replace("[]", "[$__rate_interval]")


def share(part, whole, by="", more=""):
    """Returns the share of one counter's rate in another's."""
    return f"sum{by}(rate({part}{{{more}}}[])) / sum{by}(rate({whole}{{}}[]))"


def quantiles(histogram, by="", legend=""):
    """Returns the median and the 95th and 99th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return [
        (f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket{{}}[])))", f"{legend}p{q * 100:g}")
        for q in (0.5, 0.95, 0.99)
    ]


def percentile_by(q, histogram, by):
    """Returns one percentile of a histogram for each value of a label."""
    return (f"histogram_quantile({q}, sum by (le, {by}) (rate({histogram}_bucket{{}}[])))", f"{{{{{by}}}}}")


def average(part, count, legend, by=""):
    return (f"sum{by}(rate({part}{{}}[])) / sum{by}(rate({count}{{}}[]))", legend)


def fill(panel, title, description, unit, targets):
    panel = panel.title(title).description(description).unit(unit).datasource(DATASOURCE)
    for expression, legend in targets:
        query = prometheus.Dataquery().expr(complete(expression)).legend_format(legend).datasource(DATASOURCE)
        panel = panel.with_target(query.ref_id(chr(ord("A") + len(panel.build().targets or []))))
    return panel


def number(title, description, unit, expression):
    """Returns a panel with one number for the whole range."""
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)
    return fill(stat.Panel(), title, description, unit, [(expression, title)]).reduce_options(reduce).height(4).span(4)


def lines(title, description, unit, *targets):
    """Returns a panel with lines over time: each target is an expression and its legend."""
    panel = fill(timeseries.Panel(), title, description, unit, targets).height(8).span(8).fill_opacity(8).min(0)
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
    return panel.legend(legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(True))


def signed(panel):
    """Lets a panel go below zero."""
    return panel.min(None)


def selection(name, query):
    variable = dashboard.QueryVariable(name).label(name.title()).query(query).datasource(DATASOURCE)
    variable = variable.multi(True).include_all(True).all_value(".+")
    current = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).current(current)


def page(uid, title, description, *rows):
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    built = dashboard.Dashboard(title).uid(uid).description(description).tags(["warmpath"]).readonly()
    built = built.time("now-3h", "now").refresh("30s").timezone("browser").with_variable(source)
    known = '{__name__=~"warmpath_(router|worker|host)_info"}'
    built = built.with_variable(selection("job", f"label_values({known}, job)"))
    chosen = known.replace("}", ', job=~"$job"}')
    built = built.with_variable(selection("instance", f"label_values({chosen}, instance)"))
    link = dashboard.DashboardLink("Warmpath").type(models.DashboardLinkType.DASHBOARDS).tags(["warmpath"])
    built = built.link(link.include_vars(True).keep_time(True))
    for name, panels in rows:
        built = built.with_row(dashboard.Row(name))
        for panel in panels:
            built = built.with_panel(panel)
    return built
