// The chat page: a streamed conversation with a model of this router, which shows the reuse of each prompt and the
// worker.
//
// What a model writes goes into the page as text (textContent), never as markup. The API key is kept in sessionStorage, which ends
// with the tab; messages are kept in this script only.
"use strict";

const KEY_KEPT = "warmpath-api-key";
// Distance from the end within which the page follows a growing answer. Units: CSS pixels.
const FOLLOW_PX = 80;
// Pause before the list of models is asked for again. Units: milliseconds.
const RETRY_MS = 3000;
// Pause before an answer that has not begun asks how far its model is loaded. Units: milliseconds.
const LOADING_MS = 1000;

const byId = (id) => document.getElementById(id);
const page = {
  main: document.querySelector("main"),
  messages: byId("messages"),
  model: byId("model"),
  system: byId("system"),
  key: byId("key"),
  prompt: byId("prompt"),
  send: byId("send"),
  stop: byId("stop"),
  command: byId("command"),
};

let messages = [];
let running = null;

// ---- Small things --------------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function complain(text) {
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
}

const say = (text) => { byId("news").textContent = text; };
const count = (n) => new Intl.NumberFormat().format(n);
const duration = (ms) => (ms < 999.5 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function keptKey() {
  // A browser may forbid storage.
  try { return sessionStorage.getItem(KEY_KEPT) ?? ""; } catch { return ""; }
}

function keepKey(key) {
  try {
    if (key) sessionStorage.setItem(KEY_KEPT, key);
    else sessionStorage.removeItem(KEY_KEPT);
  } catch { /* It counts until the page is reloaded. */ }
}

// ---- The router ----------------------------------------------------------------------------------------------------------------

const url = (path) => new URL(path, document.baseURI);

function headers() {
  const key = page.key.value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
}

// Returns the text of an error response: the API's own message if there is one.
async function refusal(response) {
  const body = await response.text();
  let message = "";
  try { message = JSON.parse(body).error?.message ?? ""; } catch { /* Something between the router and here answered. */ }
  if (response.status === 401) {
    byId("settings").open = true;
    page.key.focus();
  }
  return `${message || "The router refuses the request"} (status ${response.status})`;
}

async function loadModels() {
  try {
    const response = await fetch(url("v1/models"), { headers: headers() });
    if (!response.ok) return complain(await refusal(response));
    // Only a loaded model says what it can do.
    const isForChats = (model) => !isLoaded(model) || (model.capabilities?.includes("chat") ?? true);
    const listed = (await response.json()).data.filter(isForChats);
    const chosen = page.model.value;
    page.model.replaceChildren(...listed.map((model) => element("option", { value: model.id }, `${model.id}${note(model)}`)));
    if (listed.some((model) => model.id === chosen)) page.model.value = chosen;
    if (listed.length) return complain("");
    complain("No worker with a model for chats is ready yet.");
  } catch (error) {
    complain(`The router cannot be reached: ${error.message}`);
  }
  setTimeout(loadModels, RETRY_MS);
}

const isLoaded = (model) => (model.status?.value ?? "loaded") === "loaded";

// Returns what the menu says of a model beside its name.
function note(model) {
  if (isLoaded(model)) return "";
  return model.status.failed ? " (cannot be loaded)" : " (not loaded)";
}

// Shows how far a model is loaded in place of an answer's figures, until `signal` ends the wait for the answer.
async function showLoading(answer, name, signal) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOADING_MS));
    if (signal.aborted) return;
    try {
      const response = await fetch(url(`v1/models/${encodeURIComponent(name)}`), { headers: headers(), signal });
      const { status } = await response.json();
      const share = status?.progress ? `: ${Math.round(100 * status.progress)} %` : "";
      const text = status?.value === "loading" ? `The model is being loaded${share}.` : "";
      if (!signal.aborted) answer.figures.textContent = text;
    } catch { /* The answer itself says what is wrong. */ }
  }
}

// Returns the body of the next request.
function body(asked) {
  const system = page.system.value.trim();
  const told = system ? [{ role: "system", content: system }] : [];
  return {
    model: page.model.value,
    messages: [...told, ...messages.map(({ role, content }) => ({ role, content })), ...asked],
    stream: true,
    stream_options: { include_usage: true },
  };
}

// Calls `take` with each event of a stream and `takeComment` with each comment; a line may come in parts.
async function readEvents(stream, take, takeComment) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith(":")) takeComment(line.slice(1).trim());
      if (line.startsWith("data:") && line.slice(5).trim() !== "[DONE]") take(JSON.parse(line.slice(5)));
    }
  }
}

// ---- A message on the page -----------------------------------------------------------------------------------------------------

class Shown {
  constructor(role, content = "") {
    this.text = element("div", { class: "text" }, content);
    this.thoughts = element("div", { class: "thought" });
    this.reasoning = element("details", { class: "thoughts" }, element("summary", {}, "Reasoning"), this.thoughts);
    this.reasoning.hidden = true;
    this.figures = element("p", { class: "figures" });
    const title = element("h2", {}, role === "user" ? "You" : page.model.value || "Model");
    this.item = element("li", { class: role }, title, this.reasoning, this.text, this.figures);
    page.messages.append(this.item);
    page.main.scrollTop = page.main.scrollHeight;
  }

  append({ content, reasoning_content: thought }) {
    const follows = page.main.scrollHeight - page.main.scrollTop - page.main.clientHeight < FOLLOW_PX;
    if (content) this.text.append(content);
    if (thought) {
      this.reasoning.hidden = false;
      this.thoughts.append(thought);
    }
    if (follows) page.main.scrollTop = page.main.scrollHeight;
  }

  get content() {
    return this.text.textContent;
  }
}

// Returns a description of an answer's figures.
function figures({ response, usage, sent, first, ended, failovers, end }) {
  const header = (name) => response.headers.get(`x-warmpath-${name}`);
  const number = (text) => (text === null ? undefined : Number(text));
  const prompt = usage?.prompt_tokens ?? number(header("prompt-tokens"));
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? number(header("cached-tokens"));
  const parts = [];
  if (header("worker")) parts.push(header("route") ? `${header("worker")} (${header("route")})` : header("worker"));
  if (prompt !== undefined) parts.push(`${count(cached ?? 0)} of ${count(prompt)} prompt tokens reused`);
  if (first) parts.push(`first token after ${duration(first - sent)}`);
  const made = usage?.completion_tokens;
  if (made) parts.push(`${count(made)} tokens${made > 1 && ended > first ? `, ${((1000 * (made - 1)) / (ended - first)).toFixed(1)} a second` : ""}`);
  if (failovers) parts.push("continued at another worker");
  if (end) parts.push(end);
  return parts.join(" · ");
}

// ---- One request ---------------------------------------------------------------------------------------------------------------

const ENDS = { length: "ended at the limit of tokens", content_filter: "ended by a filter" };

async function ask(text) {
  const asked = { role: "user", content: text };
  const request = body([asked]);
  const control = new AbortController();
  begin(control);
  const question = new Shown("user", text);
  const answer = new Shown("assistant");
  const seen = { sent: performance.now() };
  const waiting = new AbortController();
  showLoading(answer, request.model, waiting.signal);
  try {
    seen.response = await fetch(url("v1/chat/completions"), {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify(request),
      signal: control.signal,
    });
    if (!seen.response.ok) throw new Error(await refusal(seen.response));
    await readEvents(seen.response.body, (event) => {
      waiting.abort();
      take(event, answer, seen);
    }, (comment) => {
      if (comment.startsWith("x-warmpath-failovers")) seen.failovers = true;
    });
    if (!seen.isOver) throw new Error("The answer broke off.");
    if (!answer.content) throw new Error("The answer is empty.");
    say("The answer is complete.");
  } catch (error) {
    seen.end = control.signal.aborted ? "stopped" : "broken off";
    if (control.signal.aborted) say("The answer was stopped.");
    else complain(error.message);
    // The rest of a broken answer is not read.
    control.abort();
  }
  seen.ended = performance.now();
  waiting.abort();
  answer.figures.textContent = "";
  if (seen.response?.ok) answer.figures.textContent = figures(seen);
  finish(question, answer);
  // The menu said that the model was not loaded.
  if (page.model.selectedOptions[0]?.textContent !== page.model.value) loadModels();
}

function take(event, answer, seen) {
  if (event.error) throw new Error(event.error.message ?? "The answer broke off.");
  if (event.usage) seen.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const { delta = {} } = choice;
  if (!seen.first && (delta.content || delta.reasoning_content)) seen.first = performance.now();
  if (choice.finish_reason) {
    seen.isOver = true;
    seen.end = ENDS[choice.finish_reason];
  }
  answer.append(delta);
}

function begin(control) {
  running = control;
  complain("");
  say("");
  page.messages.setAttribute("aria-busy", "true");
  page.send.disabled = true;
  page.stop.hidden = false;
}

// A partial answer stays in the conversation; a question without an answer returns to the input field.
function finish(question, answer) {
  running = null;
  page.messages.removeAttribute("aria-busy");
  page.send.disabled = false;
  const hadFocus = document.activeElement === page.stop;
  page.stop.hidden = true;
  const isOfThisChat = question.item.isConnected;
  if (isOfThisChat && answer.content) {
    messages.push({ role: "user", content: question.content }, { role: "assistant", content: answer.content });
  } else if (isOfThisChat) {
    question.item.remove();
    answer.item.remove();
    if (!page.prompt.value) page.prompt.value = question.content;
  }
  if (hadFocus || document.activeElement === document.body) page.prompt.focus();
}

// ---- Copy as curl --------------------------------------------------------------------------------------------------------------

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// Returns the next request as a command; the key is a variable of the shell, so that it is not copied.
function command() {
  const text = page.prompt.value.trim();
  const request = body(text ? [{ role: "user", content: text }] : []);
  // Without a new message: the request of the last answer.
  if (!text && request.messages.at(-1)?.role === "assistant") request.messages.pop();
  const key = page.key.value.trim() ? ' \\\n  -H "authorization: Bearer $WARMPATH_API_KEY"' : "";
  const target = quoted(url("v1/chat/completions").href);
  return `curl -N ${target} \\\n  -H 'content-type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(request))}`;
}

async function showCommand() {
  const text = command();
  byId("command-text").value = text;
  byId("copied").textContent = "";
  page.command.showModal();
  byId("command-text").select();
  try {
    await navigator.clipboard.writeText(text);
    byId("copied").textContent = "It is in the clipboard.";
  } catch {
    // Browsers give the clipboard to pages over HTTPS and of this machine only.
    byId("copied").textContent = "It is selected; copy it with the keyboard.";
  }
}

// ---- Controls ------------------------------------------------------------------------------------------------------------------

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = page.prompt.value.trim();
  if (!text || running) return;
  page.prompt.value = "";
  ask(text);
});
page.prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !page.command.open) running?.abort();
});
page.stop.addEventListener("click", () => running?.abort());
byId("fresh").addEventListener("click", () => {
  running?.abort();
  messages = [];
  page.messages.replaceChildren();
  complain("");
  page.prompt.focus();
});
page.key.addEventListener("change", () => {
  keepKey(page.key.value.trim());
  loadModels();
});
byId("curl").addEventListener("click", showCommand);
byId("command-close").addEventListener("click", () => page.command.close());

page.key.value = keptKey();
loadModels();
