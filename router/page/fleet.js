// The fleet page: polls its router every few seconds and draws the state of the fleet.
//
// Names of workers and models come from other machines: all texts go into the page as text (textContent), never as
// markup. The page is built once; afterwards only changed parts are updated, so that focus and selection stay where
// they are.
"use strict";

const POLL_MS = 2000;
const PATIENCE_MS = 8000;
// Number of polls after which the history is requested, too.
const POLLS_PER_HISTORY = 3;
const SLOTS_DRAWN_MAX = 32;
// Share of its computing time from which a worker's threads wait because of other programs, not of its own.
const BUSY_MIN = 0.2;
const DECISIONS_AT_FIRST = 20;

const byId = (id) => document.getElementById(id);

// ---- Elements ------------------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function say(id, text) {
  const place = byId(id);
  if (place.textContent !== text) place.textContent = text;
}

const badge = (kind, text = kind) => element("span", { class: `badge ${String(kind).split(":")[0]}` }, String(text));
const small = (text) => element("small", {}, text);

// ---- Numbers -------------------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat();
const count = (n) => (Number.isFinite(n) ? whole.format(n) : "–");
const percent = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(1)} %` : "–");
const clock = (ms) => new Date(ms).toLocaleTimeString();
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function seconds(s) {
  if (!Number.isFinite(s)) return "–";
  if (s < 0.0995) return `${(s * 1000).toFixed(s < 0.00995 ? 1 : 0)} ms`;
  return s < 0.9995 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(s < 10 ? 2 : 1)} s`;
}

function duration(s) {
  if (!Number.isFinite(s) || s < 0) return "";
  if (s < 120) return plural(Math.round(s), "second");
  if (s < 7200) return plural(Math.round(s / 60), "minute");
  return s < 172800 ? plural(Math.round(s / 3600), "hour") : plural(Math.round(s / 86400), "day");
}

// ---- Tables --------------------------------------------------------------------------------------------------------------------

// Keeps a table's rows by key. A column has a label, the parts of a cell, and what it is sorted by if it can be.
class Rows {
  constructor(name, columns, key) {
    this.columns = columns;
    this.key = key;
    this.body = byId(`${name}-rows`);
    this.empty = byId(`no-${name}`);
    this.rows = new Map();
    this.sorted = columns.some((column) => column.by) ? { column: 0, sign: 1 } : null;
    this.items = [];
    this.heads = columns.map((column, idx) => this.head(column, idx));
    byId(`${name}-head`).append(...this.heads);
    this.mark();
  }

  head(column, idx) {
    const attributes = { role: "columnheader", scope: "col" };
    if (column.number) attributes.class = "number";
    if (!column.by) return element("th", attributes, column.label);
    const button = element("button", { type: "button" }, column.label);
    button.addEventListener("click", () => {
      const turns = this.sorted.column === idx;
      this.sorted = { column: idx, sign: turns ? -this.sorted.sign : 1 };
      this.mark();
      this.show(this.items);
    });
    return element("th", attributes, button);
  }

  mark() {
    if (!this.sorted) return;
    this.heads.forEach((head, idx) => {
      if (idx !== this.sorted.column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.sorted.sign > 0 ? "ascending" : "descending");
    });
  }

  show(items) {
    this.items = items;
    const ordered = [...items];
    if (this.sorted) {
      const { column, sign } = this.sorted;
      const by = this.columns[column].by;
      ordered.sort((a, b) => sign * compare(by(a), by(b)));
    }
    const keys = new Set(ordered.map(this.key));
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    let last = null;
    for (const item of ordered) {
      const row = this.row(item);
      const wanted = last ? last.nextSibling : this.body.firstChild;
      if (row !== wanted) this.body.insertBefore(row, wanted);
      last = row;
    }
    this.empty.hidden = items.length > 0;
  }

  row(item) {
    const key = this.key(item);
    let row = this.rows.get(key);
    if (!row) {
      row = element("tr", { role: "row" }, ...this.columns.map(cell));
      this.rows.set(key, row);
    }
    this.columns.forEach((column, idx) => {
      const place = row.children[idx].firstChild;
      const fresh = element("span", {}, ...column.parts(item));
      if (!place.isEqualNode(fresh)) place.replaceWith(fresh);
    });
    return row;
  }
}

function cell(column, idx) {
  const kind = [column.number ? "number" : "", column.kind ?? ""].join(" ").trim();
  const attributes = { "data-label": column.label, ...(kind ? { class: kind } : {}) };
  if (idx === 0) return element("th", { ...attributes, role: "rowheader", scope: "row" }, element("span"));
  return element("td", { ...attributes, role: "cell" }, element("span"));
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

// ---- Workers -------------------------------------------------------------------------------------------------------------------

const modelOf = (worker) => worker.model?.names?.[0] ?? "model not known yet";
const busyOf = (worker) => worker.load?.busy_slots?.length ?? 0;
const slotsOf = (worker) => worker.model?.n_slots ?? 0;

function squares(worker) {
  const [n, busy] = [slotsOf(worker), new Set(worker.load?.busy_slots ?? [])];
  if (n === 0 || n > SLOTS_DRAWN_MAX) return [];
  const marks = Array.from({ length: n }, (_, slot) => element("i", busy.has(slot) ? { class: "busy" } : {}));
  return [element("span", { class: "slots", "aria-hidden": "true" }, ...marks)];
}

function stateParts(worker) {
  const why = worker.excluded ?? worker.trouble;
  const parts = [badge(worker.state)];
  if (worker.mode !== "summary") parts.push(small(`stock server, known by ${worker.mode}`));
  return why ? [...parts, small(why)] : parts;
}

// The name that a worker gives itself, which answers carry, and the URL by which the router knows it.
function named(url) {
  const name = page.names.get(url) ?? url;
  return name === url ? [url] : [name, small(url)];
}

const WORKER_COLUMNS = [
  { label: "Worker", by: (w) => w.name ?? w.url, parts: (w) => [...named(w.url), small(modelOf(w))] },
  { label: "State", by: (w) => w.state, parts: stateParts },
  { label: "Slots", by: busyOf, parts: (w) => [...squares(w), `${busyOf(w)} of ${slotsOf(w)}`] },
  { label: "Queue", number: true, by: (w) => w.load?.n_queued ?? 0, parts: (w) => [count(w.load?.n_queued)] },
  { label: "In flight", number: true, by: (w) => w.in_flight, parts: (w) => [count(w.in_flight)] },
  {
    label: "Holds",
    number: true,
    by: (w) => w.blocks,
    parts: (w) => [plural(w.blocks, "block"), small(`${count(w.blocks * (w.model?.block_size_tokens ?? 0))} tokens`)],
  },
  { label: "Free cells", number: true, by: (w) => w.load?.free_cells ?? 0, parts: (w) => [count(w.load?.free_cells)] },
  {
    label: "Prefill rate",
    number: true,
    by: (w) => w.load?.rates?.prefill_tokens_per_s ?? 0,
    parts: (w) => {
      const rate = w.load?.rates?.prefill_tokens_per_s;
      return [Number.isFinite(rate) ? `${count(Math.round(rate))} tokens/s` : "–"];
    },
  },
  {
    label: "Waits for CPU",
    number: true,
    by: (w) => w.load?.rates?.processor_wait ?? 0,
    parts: (w) => {
      const wait = w.load?.rates?.processor_wait;
      if (!Number.isFinite(wait)) return ["–"];
      return [percent(wait, 1), ...(wait >= BUSY_MIN ? [small("other programs take the processors")] : [])];
    },
  },
  { label: "Breaker", by: (w) => w.breaker, parts: (w) => [w.breaker === "closed" ? "closed" : badge(w.breaker, w.breaker.replace("_", " "))] },
  { label: "Heard", number: true, by: (w) => w.age_seconds ?? Infinity, parts: (w) => [w.age_seconds == null ? "never" : `${seconds(w.age_seconds)} ago`] },
];

// ---- Hosts ---------------------------------------------------------------------------------------------------------------------

const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

function hostText(host) {
  const free = (host.memory ?? []).map((m) => `${gib(m.free_bytes)} of ${gib(m.budget_bytes)} free on ${m.device}`);
  const parts = [`${host.url} is ${host.state}`, ...(host.trouble ? [host.trouble] : []), ...free];
  return parts.join(", ");
}

// What a load would take now: memory, time, and the time of loading again what leaves for it.
function costText(model) {
  const evicts = model.evicts_ms > 0 ? `, displaces ${seconds(model.evicts_ms / 1000)}` : "";
  return `takes ${gib(model.memory_bytes)} and ${seconds((model.wait_ms + model.load_ms) / 1000)}${evicts}`;
}

function modelStateParts({ model }) {
  const details = {
    loaded: () => (model.n_running > 0 ? plural(model.n_running, "request") : `idle for ${duration(model.idle_ms / 1000)}`),
    loading: () => (model.worker_url ? `${percent(model.progress, 1)}, ${seconds(model.remaining_ms / 1000)} left` : model.progress > 0 ? `${percent(model.progress, 1)} downloaded` : "waits for memory"),
    unloading: () => "finishes its answers",
    loadable: () => (model.is_local ? costText(model) : "must be downloaded"),
    downloading: () => `${gib(model.done_bytes)} of ${gib(model.total_bytes)}`,
    impossible: () => model.reason,
  };
  return [badge(model.state), small(details[model.state]?.() ?? "")];
}

const MODEL_COLUMNS = [
  { label: "Model", by: ({ model }) => model.name, parts: ({ model }) => [model.name, small(model.aliases.join(", "))] },
  { label: "Host", by: ({ host }) => host.url, parts: ({ host }) => [host.url] },
  { label: "State", by: ({ model }) => model.state, parts: modelStateParts },
  { label: "Pinned", by: ({ model }) => Number(model.is_pinned), parts: ({ model }) => [model.is_pinned ? "yes" : "no"] },
];

function showHosts(hosts) {
  byId("hosts").hidden = hosts.length === 0;
  say("hosts-memory", hosts.map(hostText).join("; "));
  models.show(hosts.flatMap((host) => (host.models ?? []).map((model) => ({ host, model }))));
}

// ---- Decisions -----------------------------------------------------------------------------------------------------------------

const OUTCOMES = { open: "waiting", left: "client left" };

function reusedParts(decision) {
  const { prompt_tokens: all, cached_tokens: cached, predicted_cached_tokens: predicted } = decision;
  const told = predicted == null ? "prompt not known here" : `predicted ${count(predicted)}`;
  if (cached == null) return ["–", small(told)];
  const bar = element("i");
  // Not an attribute: the page's policy lets no style stand in the document.
  bar.style.width = `${all > 0 ? Math.min(100, (100 * cached) / all) : 0}%`;
  return [element("span", { class: "share", "aria-hidden": "true" }, bar), `${count(cached)} (${percent(cached, all)})`, small(told)];
}

function outcomeParts(decision) {
  if (decision.outcome === "answered" && decision.status !== 200) return [badge("failed", `status ${decision.status}`)];
  if (decision.outcome === "failed") return [badge("failed", `failed: ${decision.failure}`)];
  return [badge(decision.outcome, OUTCOMES[decision.outcome] ?? decision.outcome)];
}

const DECISION_COLUMNS = [
  { label: "Time", parts: (d) => [clock(d.at_ms)] },
  { label: "Worker", parts: (d) => [...named(d.worker), small(d.model ?? "")] },
  { label: "Reason", parts: (d) => [badge(d.reason)] },
  { label: "Prompt", number: true, parts: (d) => [`${d.predicted_cached_tokens == null ? "about " : ""}${plural(d.prompt_tokens, "token")}`] },
  { label: "Reused", parts: reusedParts },
  { label: "First byte", number: true, parts: (d) => [d.ttft_ms == null ? "–" : seconds(d.ttft_ms / 1000)] },
  { label: "Outcome", parts: outcomeParts },
  { label: "Request", kind: "id", parts: (d) => [d.request_id] },
];

// ---- Charts --------------------------------------------------------------------------------------------------------------------

const share = (part) => (point) => (point.prompt_tokens > 0 ? point[part] / point.prompt_tokens : null);
const rate = (part) => (point) => (point.seconds > 0 ? point[part] / point.seconds : null);
const asPercent = (value) => percent(value, 1);
const asRate = (value) => `${value.toFixed(value < 10 ? 2 : 0)}/s`;

const CHARTS = [
  {
    title: "Prefix hit ratio",
    about: "Share of prompt tokens that were reused, that were predicted to be, and that could have been reused at best.",
    top: 1,
    format: asPercent,
    series: [
      { name: "ceiling", kind: "held", of: share("held_tokens") },
      { name: "predicted", kind: "predicted", of: share("predicted_cached_tokens") },
      { name: "reused", kind: "reused", of: share("cached_tokens") },
    ],
  },
  {
    title: "Time to first byte",
    about: "The time within which half of the answers began, and 95 of 100.",
    format: seconds,
    series: [
      { name: "95%", kind: "held", of: (point) => point.ttft_p95_s },
      { name: "median", kind: "reused", of: (point) => point.ttft_p50_s },
    ],
  },
  {
    title: "Requests",
    about: "Requests that were answered, and those that were refused or failed, a second.",
    format: asRate,
    series: [
      { name: "answered", kind: "reused", of: rate("requests") },
      { name: "refused or failed", kind: "bad", of: rate("failures") },
    ],
  },
];

const BOX = { width: 400, height: 160, left: 52, right: 392, top: 10, bottom: 136 };

class Chart {
  constructor(spec, idx) {
    this.spec = spec;
    this.title = drawn("title", { id: `chart-${idx}-title` }, spec.title);
    this.about = drawn("desc", { id: `chart-${idx}-about` }, spec.about);
    this.plot = drawn("g");
    const names = { "aria-labelledby": this.title.id, "aria-describedby": this.about.id };
    const picture = drawn("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", ...names }, this.title, this.about, this.plot);
    const key = ({ name, kind }) => {
      const line = drawn("line", { x1: 0, y1: 4, x2: 20, y2: 4, class: `series ${kind}` });
      return element("li", {}, drawn("svg", { viewBox: "0 0 20 8", "aria-hidden": "true" }, line), name);
    };
    const legend = element("ul", { class: "legend" }, ...spec.series.map(key));
    this.table = element("div", { tabindex: 0, role: "region", "aria-label": `${spec.title}, as a table` });
    this.details = element("details", {}, element("summary", {}, "As a table"), this.table);
    this.details.addEventListener("toggle", () => this.fill());
    this.figure = element("figure", {}, element("figcaption", {}, spec.title, legend), picture, this.details);
    this.points = [];
  }

  draw(points, window_s) {
    this.points = points;
    const { spec } = this;
    const end = points.at(-1)?.end_ms ?? 0;
    const values = spec.series.map((series) => points.map(series.of));
    const highest = Math.max(0, ...values.flat().filter(Number.isFinite));
    const top = spec.top ?? roundUp(highest);
    const x = (point) => BOX.right - ((end - point.end_ms) / (window_s * 1000)) * (BOX.right - BOX.left);
    const y = (value) => BOX.bottom - (Math.min(value, top) / top) * (BOX.bottom - BOX.top);
    const marks = [0, top / 2, top].flatMap((value) => [
      drawn("line", { class: "grid", x1: BOX.left, x2: BOX.right, y1: y(value), y2: y(value) }),
      drawn("text", { x: BOX.left - 6, y: y(value) + 4, "text-anchor": "end" }, value === 0 ? "0" : spec.format(value).replace(".0 %", " %")),
    ]);
    const times = [
      drawn("text", { x: BOX.left, y: BOX.height - 6 }, `${duration(window_s)} ago`),
      drawn("text", { x: BOX.right, y: BOX.height - 6, "text-anchor": "end" }, "now"),
    ];
    const lines = spec.series.flatMap((series, idx) => {
      const places = points.map((point, n) => (Number.isFinite(values[idx][n]) && x(point) >= BOX.left ? [x(point), y(values[idx][n])] : null));
      return stretches(places).map((stretch) => line(stretch, series.kind));
    });
    this.plot.replaceChildren(...marks, ...times, ...lines);
    this.describe(values);
    this.fill();
  }

  describe(values) {
    const said = this.spec.series.map(({ name }, idx) => {
      const known = values[idx].filter(Number.isFinite);
      if (known.length === 0) return `${name}: nothing yet`;
      const { format } = this.spec;
      return `${name}: ${format(known.at(-1))}, from ${format(Math.min(...known))} to ${format(Math.max(...known))}`;
    });
    const text = `${this.spec.about} ${said.join("; ")}.`;
    if (this.about.textContent !== text) this.about.textContent = text;
  }

  // The table is made only while it is open.
  fill() {
    if (!this.details.open) return;
    const { series, format } = this.spec;
    const head = ["Until", ...series.map(({ name }) => name)].map((text) => element("th", { scope: "col" }, text));
    const cells = (point) => series.map(({ of }) => element("td", {}, Number.isFinite(of(point)) ? format(of(point)) : "–"));
    const rows = this.points.map((point) => element("tr", {}, element("th", { scope: "row" }, clock(point.end_ms)), ...cells(point)));
    const body = element("tbody", {}, ...rows.reverse());
    const place = this.table.scrollTop;
    this.table.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), body));
    this.table.scrollTop = place;
  }
}

// Returns runs of neighbouring places; a gap is where nothing was measured.
function stretches(places) {
  const found = [];
  places.forEach((place, idx) => {
    if (!place) return;
    if (idx > 0 && places[idx - 1]) found.at(-1).push(place);
    else found.push([place]);
  });
  return found;
}

function line(stretch, kind) {
  if (stretch.length === 1) return drawn("circle", { class: `dot ${kind}`, cx: stretch[0][0], cy: stretch[0][1], r: 3 });
  const points = stretch.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  return drawn("polyline", { class: `series ${kind}`, points });
}

// Returns the next of 1, 2, 5, 10, ... that is not below the value.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= value * 0.9999) ?? 10 * unit;
}

// ---- The page ------------------------------------------------------------------------------------------------------------------

const workers = new Rows("workers", WORKER_COLUMNS, (worker) => worker.url);
const models = new Rows("models", MODEL_COLUMNS, ({ host, model }) => `${host.url} ${model.name}`);
const decisions = new Rows("decisions", DECISION_COLUMNS, (decision) => `${decision.at_ms} ${decision.request_id} ${decision.worker}`);
const charts = CHARTS.map((spec, idx) => new Chart(spec, idx));
byId("charts").append(...charts.map((chart) => chart.figure));

const page = { isPaused: false, nPolls: 0, nDecisions: DECISIONS_AT_FIRST, states: null, names: new Map(), lastUpdate: null };

function showFleet(fleet, nowMs) {
  const badgeKind = fleet.ready ? "ready" : "unready";
  byId("readiness").className = `badge ${badgeKind}`;
  say("readiness", fleet.ready ? "ready" : "not ready");
  const up = duration(nowMs / 1000 - fleet.started_s);
  say("about", `version ${fleet.version}, up for ${up}${fleet.unready_reason ? `: ${fleet.unready_reason}` : ""}`);
  const ready = fleet.workers.filter((worker) => worker.state === "ready");
  const others = fleet.workers.filter((worker) => worker.state !== "ready");
  say("ready", `${count(ready.length)} of ${count(fleet.workers.length)}`);
  const states = [...new Set(others.map((worker) => worker.state))];
  const tally = states.map((state) => `${count(others.filter((worker) => worker.state === state).length)} ${state}`);
  say("unready", tally.join(", ") || (ready.length > 0 ? "every worker serves" : ""));
  say("in-flight", count(fleet.in_flight));
  say("waiting", `${count(fleet.waiting)} waiting in the router`);
  page.names = new Map(fleet.workers.map((worker) => [worker.url, worker.name ?? worker.url]));
  workers.show(fleet.workers);
  showHosts(fleet.hosts);
  tellNews(fleet);
}

// Announces changes since the last poll to screen readers, and nothing else.
function tellNews(fleet) {
  const states = new Map(fleet.workers.map((worker) => [worker.url, worker.state]));
  if (page.states) {
    const changed = [...states].filter(([url, state]) => page.states.get(url) !== state).map(([url, state]) => `${url} is ${state}`);
    const gone = [...page.states.keys()].filter((url) => !states.has(url)).map((url) => `${url} has left`);
    if (changed.length + gone.length > 0) say("news", [...changed, ...gone].join(". "));
  }
  page.states = states;
}

function showDecisions(list) {
  page.decisions = list;
  decisions.show(list.slice(0, page.nDecisions));
  byId("all").hidden = list.length <= page.nDecisions;
  say("all", `Show all ${count(list.length)}`);
}

function showHistory(history, window_s) {
  const { sum } = history;
  say("hit", percent(sum.cached_tokens, sum.prompt_tokens));
  say("predicted", percent(sum.predicted_cached_tokens, sum.prompt_tokens));
  say("held", percent(sum.held_tokens, sum.prompt_tokens));
  say("saved", `${count(sum.cached_tokens)} of ${count(sum.prompt_tokens)} prompt tokens in ${duration(Math.min(sum.seconds, window_s))}`);
  say("fetched", sum.fetched_tokens > 0 ? ` · ${count(sum.fetched_tokens)} fetched from other workers` : "");
  const place = (part) => `${sum.prompt_tokens > 0 ? Math.min(100, (100 * part) / sum.prompt_tokens) : 0}%`;
  byId("meter-hit").style.width = place(sum.cached_tokens);
  byId("meter-predicted").style.left = place(sum.predicted_cached_tokens);
  byId("meter-held").style.left = place(sum.held_tokens);
  say("ttft50", seconds(sum.ttft_p50_s ?? NaN));
  say("ttft95", seconds(sum.ttft_p95_s ?? NaN));
  say("rate", sum.seconds > 0 ? `${asRate(sum.requests / sum.seconds)} answered` : "");
  // A rate over a short time means little.
  const points = history.points.filter((point, idx) => idx === 0 || point.seconds >= history.pause_s / 2);
  charts.forEach((chart) => chart.draw(points, window_s));
}

async function ask(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!response.ok) throw new Error(`${path} answers ${response.status}`);
  return response.json();
}

async function poll(wantsHistory) {
  const window_s = Number(byId("window").value);
  try {
    const asked = [ask("internal/v1/fleet"), ask("internal/v1/decisions"), wantsHistory ? ask(`internal/v1/history?window_s=${window_s}`) : null];
    const [fleet, recent, history] = await Promise.all(asked);
    showFleet(fleet, recent.now_ms);
    showDecisions(recent.decisions);
    if (history) showHistory(history, window_s);
    page.lastUpdate = Date.now();
    byId("trouble").hidden = true;
  } catch (error) {
    const since = page.lastUpdate ? ` What is shown is from ${clock(page.lastUpdate)}.` : "";
    say("trouble", `The router does not answer: ${error.message}.${since}`);
    byId("trouble").hidden = false;
  }
  if (page.lastUpdate) say("updated", `${page.isPaused ? "Paused; as" : "As"} of ${clock(page.lastUpdate)}.`);
}

async function pollRepeatedly() {
  if (!page.isPaused && !document.hidden) {
    await poll(page.nPolls % POLLS_PER_HISTORY === 0);
    page.nPolls += 1;
  }
  setTimeout(pollRepeatedly, POLL_MS);
}

byId("pause").addEventListener("click", () => {
  page.isPaused = !page.isPaused;
  byId("pause").setAttribute("aria-pressed", String(page.isPaused));
  say("pause", page.isPaused ? "Resume" : "Pause");
  say("news", page.isPaused ? "Paused" : "Resumed");
  poll(true);
});
byId("all").addEventListener("click", () => {
  page.nDecisions = Infinity;
  showDecisions(page.decisions);
  byId("decisions-title").focus();
});
byId("window").addEventListener("change", () => poll(true));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !page.isPaused) poll(true);
});
pollRepeatedly();
