// The chat page: chats in localStorage, answers from /v1/chat/completions, statistics from /metrics.

import { render } from "/web/markdown.js";

const $ = (id) => document.getElementById(id);
const stored = (key, otherwise) => {
  try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; }
};
const store = (key, value) => {
  try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* storage is full or blocked: the chat is not saved */ }
};

const NUMBERS = ["temperature", "top_p", "min_p", "top_k", "repeat_penalty", "max_tokens", "seed"];
const MAX_CHATS = 200;

let chats = stored("oxidize.chats", []);
let current = null;
let running = null;
const settings = stored("oxidize.settings", {});

const headers = () => ({
  "Content-Type": "application/json",
  ...(settings.key ? { Authorization: `Bearer ${settings.key}` } : {}),
});

/* ---------- models and settings ---------- */

async function loadModels() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (response.status === 401) {
    openSettings(true);
    $("set-key").focus();
    throw new Error("this server needs an API key; enter it in the settings");
  }
  const { data } = await response.json();
  $("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
  if (data.some(({ id }) => id === settings.model)) $("model").value = settings.model;
  loadDefaults();
}

async function loadDefaults() {
  const response = await fetch(`/props?model=${encodeURIComponent($("model").value)}`, { headers: headers() });
  if (!response.ok) return;
  const { params } = (await response.json()).default_generation_settings;
  for (const name of NUMBERS) {
    const input = $(`set-${name}`);
    if (input.type === "range") input.dataset.default = params[name];
  }
  showSettings();
}

/* Default of a setting; the server reports it once a model is selected. */
function modelDefault(value) {
  return value === undefined ? "model default" : `${Number(Number(value).toFixed(2))} (model)`;
}

function showSettings() {
  for (const name of NUMBERS) {
    const input = $(`set-${name}`);
    const value = settings[name];
    input.value = value ?? input.dataset.default ?? "";
    const output = input.parentElement.querySelector("output");
    if (output) output.textContent = value ?? modelDefault(input.dataset.default);
  }
  $("set-system").value = settings.system ?? "";
  $("set-key").value = settings.key ?? "";
}

function openSettings(open) {
  $("settings").hidden = !open;
  $("toggle-settings").setAttribute("aria-expanded", open);
}

for (const name of [...NUMBERS, "system", "key"]) {
  $(`set-${name}`).addEventListener(name === "key" ? "change" : "input", ({ target }) => {
    const text = target.value;
    if (text === "") delete settings[name];
    else settings[name] = NUMBERS.includes(name) ? Number(text) : text;
    store("oxidize.settings", settings);
    if (NUMBERS.includes(name)) showSettings();
    if (name === "key") loadModels().catch(() => {});
  });
}
$("reset-settings").addEventListener("click", () => {
  NUMBERS.forEach((name) => delete settings[name]);
  store("oxidize.settings", settings);
  showSettings();
});
$("toggle-settings").addEventListener("click", () => openSettings($("settings").hidden));
$("close-settings").addEventListener("click", () => openSettings(false));
$("model").addEventListener("change", ({ target }) => {
  settings.model = target.value;
  store("oxidize.settings", settings);
  loadDefaults();
});

/* ---------- fetching a model ---------- */

let fetching = null;

const gigabytes = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(1)} MB`);

function showPull({ status, total, completed }, start) {
  const progress = $("pull-progress");
  if (!total) {
    progress.removeAttribute("value");
    $("pull-state").textContent = status;
    return;
  }
  progress.value = completed / total;
  start.at ??= performance.now();
  start.done ??= completed;
  const seconds = (performance.now() - start.at) / 1000;
  const rate = seconds > 0.5 ? (completed - start.done) / seconds : 0;
  const left = rate > 0 ? `, ${gigabytes(rate)}/s, ${Math.ceil((total - completed) / rate)} s left` : "";
  $("pull-state").textContent = `${gigabytes(completed)} of ${gigabytes(total)}${left}`;
}

/* Calls `each` with the object on each line of a response. */
async function readLines(response, each) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop();
    lines.filter((line) => line.trim()).forEach((line) => each(JSON.parse(line)));
    if (done) return;
  }
}

async function pull(model) {
  fetching = new AbortController();
  $("pull-progress").hidden = $("pull-stop").hidden = false;
  $("pull-start").disabled = true;
  $("pull-state").textContent = "connecting…";
  try {
    const response = await fetch("/api/pull", {
      method: "POST", headers: headers(), body: JSON.stringify({ model }), signal: fetching.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error);
    const start = {};
    await readLines(response, (line) => {
      if (line.error) throw new Error(line.error);
      showPull(line, start);
    });
    settings.model = model.replace(/:latest$/, "");
    store("oxidize.settings", settings);
    await loadModels();
    $("pull-state").textContent = `${settings.model} is ready`;
  } catch (error) {
    $("pull-state").textContent = error.name === "AbortError" ? "stopped; fetch again to go on" : error.message;
  } finally {
    fetching = null;
    $("pull-progress").hidden = $("pull-stop").hidden = true;
    $("pull-start").disabled = false;
  }
}

$("pull").addEventListener("submit", (event) => {
  event.preventDefault();
  const model = $("pull-name").value.trim();
  if (model && !fetching) pull(model);
});
$("pull-stop").addEventListener("click", () => fetching?.abort());

/* ---------- theme ---------- */

function theme(name) {
  document.documentElement.dataset.theme = name;
}
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
theme(settings.theme ?? (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", () => { if (!settings.theme) theme(prefersDark.matches ? "dark" : "light"); });
$("toggle-theme").addEventListener("click", () => {
  settings.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  theme(settings.theme);
  store("oxidize.settings", settings);
});
$("toggle-sidebar").addEventListener("click", () => document.body.classList.toggle("narrow"));
if (innerWidth <= 760) document.body.classList.add("narrow");

/* ---------- history ---------- */

function save() {
  if (current && !chats.includes(current)) chats.unshift(current);
  chats.sort((a, b) => b.updated - a.updated);
  chats = chats.slice(0, MAX_CHATS);
  store("oxidize.chats", chats);
  showHistory();
}

function showHistory() {
  $("history").replaceChildren(...chats.map((chat) => {
    const row = document.createElement("div");
    row.className = chat === current ? "chat current" : "chat";
    const open = document.createElement("button");
    Object.assign(open, { className: "open", type: "button", textContent: chat.title, title: chat.title });
    open.addEventListener("click", () => show(chat));
    const remove = document.createElement("button");
    Object.assign(remove, { className: "remove", type: "button", textContent: "✕", title: "Delete" });
    remove.setAttribute("aria-label", `Delete ${chat.title}`);
    remove.addEventListener("click", () => {
      chats = chats.filter((other) => other !== chat);
      store("oxidize.chats", chats);
      if (chat === current) show(null);
      else showHistory();
    });
    row.append(open, remove);
    return row;
  }));
}

function show(chat) {
  running?.abort();
  current = chat;
  const welcome = $("welcome");
  $("messages").replaceChildren(welcome);
  welcome.hidden = Boolean(chat?.messages.length);
  chat?.messages.forEach((message, index) => $("messages").append(view(message, index)));
  showHistory();
  scroll(true);
  $("input").focus();
}

$("new-chat").addEventListener("click", () => show(null));
$("clear-history").addEventListener("click", () => {
  if (!confirm("Delete every chat in this browser?")) return;
  chats = [];
  store("oxidize.chats", chats);
  show(null);
});

/* ---------- messages ---------- */

function view(message, index) {
  const made = document.createElement("article");
  made.className = `message ${message.role}`;
  const bubble = document.createElement("div");
  bubble.className = "bubble";
  const foot = document.createElement("div");
  foot.className = "foot";
  made.append(bubble, foot);
  fill(made, message, index, false);
  return made;
}

function fill(made, message, index, live) {
  const [bubble, foot] = made.children;
  bubble.replaceChildren();
  if (message.role === "user") {
    bubble.textContent = message.content;
  } else {
    if (message.reasoning) {
      const reasoning = document.createElement("details");
      reasoning.className = "reasoning";
      reasoning.open = live && !message.content;
      const summary = document.createElement("summary");
      summary.textContent = live && !message.content ? "Thinking…" : "Reasoning";
      reasoning.append(summary, render(message.reasoning));
      bubble.append(reasoning);
    }
    bubble.append(render(message.content));
    if (message.error) {
      const error = document.createElement("p");
      error.className = "error";
      error.textContent = message.error;
      bubble.append(error);
    }
    bubble.classList.toggle("cursor", live);
  }
  if (live) return;
  const action = (label, act) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: label });
    button.addEventListener("click", act);
    return button;
  };
  foot.replaceChildren(
    action("Copy", () => navigator.clipboard.writeText(message.content)),
    message.role === "user"
      ? action("Edit", () => {
          const text = message.content;
          cut(index);
          $("input").value = text;
          grow();
          $("input").focus();
        })
      : action("Regenerate", () => {
          cut(index);
          answer();
        }),
  );
  if (message.note) foot.append(message.note);
}

/** Removes a message and all that follow. */
function cut(index) {
  running?.abort();
  current.messages.length = index;
  const chat = current;
  save();
  show(chat);
}

let pinned = true;
$("messages").addEventListener("scroll", ({ target }) => {
  pinned = target.scrollHeight - target.scrollTop - target.clientHeight < 60;
});
function scroll(force) {
  if (force || pinned) $("messages").scrollTop = $("messages").scrollHeight;
}

/* ---------- requests ---------- */

function send(text) {
  if (running || !text.trim()) return;
  current ??= { id: crypto.randomUUID?.() ?? String(Date.now()), title: text.trim().slice(0, 60), messages: [], updated: 0 };
  current.messages.push({ role: "user", content: text.trim() });
  $("welcome").hidden = true;
  $("messages").append(view(current.messages.at(-1), current.messages.length - 1));
  answer();
}

async function answer() {
  const chat = current;
  const turns = chat.messages.map(({ role, content }) => ({ role, content }));
  if (settings.system) turns.unshift({ role: "system", content: settings.system });
  const message = { role: "assistant", content: "" };
  chat.messages.push(message);
  chat.updated = Date.now();
  const index = chat.messages.length - 1;
  const made = view(message, index);
  $("messages").append(made);
  fill(made, message, index, true);
  busy(new AbortController());
  scroll(true);

  let frame = 0;
  const repaint = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      fill(made, message, index, true);
      scroll();
    });
  };
  try {
    const body = { model: $("model").value, messages: turns, stream: true, stream_options: { include_usage: true } };
    for (const name of NUMBERS) if (settings[name] !== undefined) body[name] = settings[name];
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices[0]?.delta ?? {};
      message.content += delta.content ?? "";
      if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
      if (event.timings) message.note = note(event);
      repaint();
    }
  } catch (error) {
    if (error.name === "AbortError") message.note = "stopped";
    else message.error = error.message;
  }
  cancelAnimationFrame(frame);
  busy(null);
  fill(made, message, index, false);
  save();
  scroll();
}

function note({ timings, choices }) {
  const parts = [`${timings.predicted_n} tokens`, `${timings.predicted_per_second.toFixed(1)} tok/s`];
  if (timings.cache_n) parts.push(`${timings.cache_n} prompt tokens cached`);
  if (choices[0].finish_reason === "length") parts.push("token limit reached");
  return parts.join(" · ");
}

/** The JSON of each server-sent event. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

function busy(controller) {
  running = controller;
  $("send").hidden = Boolean(controller);
  $("stop").hidden = !controller;
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return;
  send($("input").value);
  $("input").value = "";
  grow();
});
$("stop").addEventListener("click", () => running?.abort());
$("ideas").addEventListener("click", ({ target }) => { if (target.matches("button")) send(target.textContent); });

/* ---------- live statistics ---------- */

const rates = [];
let before = null;

async function watch() {
  try {
    const response = await fetch("/metrics", { headers: headers() });
    if (!response.ok) throw new Error(response.status === 401 ? "API key required" : `error ${response.status}`);
    showLive(sums(await response.text()));
    state("good", "running");
  } catch (error) {
    state("bad", error instanceof TypeError ? "not reachable" : error.message);
    before = null;
  }
}

/** Each metric, summed over its labels. */
function sums(text) {
  const all = {};
  for (const line of text.split("\n")) {
    const found = line.match(/^([a-z_]+)(?:\{[^}]*\})? ([\d.eE+-]+)$/);
    if (found) all[found[1]] = (all[found[1]] ?? 0) + Number(found[2]);
  }
  return all;
}

function showLive(now) {
  const at = performance.now();
  const tokens = now.oxidize_engine_generated_tokens_total ?? 0;
  const rate = before ? Math.max(0, (tokens - before.tokens) / ((at - before.at) / 1000)) : 0;
  before = { tokens, at };
  rates.push(rate);
  if (rates.length > 60) rates.shift();
  const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
  $("live-rate").textContent = rate.toFixed(rate < 10 ? 1 : 0);
  $("live-running").textContent = now.oxidize_requests_running ?? 0;
  $("live-queued").textContent = now.oxidize_requests_waiting ?? 0;
  $("live-cache").textContent = share(now.oxidize_cached_prompt_tokens_total, now.oxidize_prompt_tokens_total);
  const used = now.oxidize_used_blocks ?? 0;
  $("live-kv").textContent = share(used, used + (now.oxidize_cached_blocks ?? 0) + (now.oxidize_free_blocks ?? 0));
  $("live-answers").textContent = now.oxidize_time_to_first_token_seconds_count ?? 0;
  const top = Math.max(1, ...rates);
  const points = rates.map((value, index) => `${(120 * index) / 59},${30 - (27 * value) / top}`);
  $("spark-line").setAttribute("d", `M${points.join("L")}`);
  $("spark-area").setAttribute("d", `M0,32L${points.join("L")}L${(120 * (rates.length - 1)) / 59},32Z`);
}

function state(kind, text) {
  $("live-dot").className = `dot ${kind}`;
  $("live-state").textContent = text;
}

showSettings();
showHistory();
loadModels().catch((error) => state("bad", error.message));
watch();
setInterval(() => { if (!document.hidden) watch(); }, 1000);
