import { type LoadProgress, type ModelInfo, Oxidize, type OxidizeError } from "oxidize";
import { Conversation } from "./conversation";
import { element, megabytes } from "./element";
import { type Chosen, showPicker } from "./picker";
import { editSettings, readSettings } from "./settings";

type View = "picker" | "loading" | "chat";

const conversation = new Conversation();
const input = element<HTMLTextAreaElement>("input");
let model: Oxidize | undefined;
let info: ModelInfo | undefined;
let chosen: Chosen | undefined;
let loading: AbortController | undefined;

function show(view: View): void {
  for (const name of ["picker", "loading", "chat"] as const) element(name).hidden = name !== view;
  for (const id of ["composer", "model-name", "new-chat"]) element(id).hidden = view !== "chat";
}

async function pick(): Promise<void> {
  loading?.abort();
  conversation.clear();
  model?.unload();
  model = undefined;
  info = undefined;
  show("picker");
  await showPicker((next) => void load(next));
}

function showError(error: unknown): void {
  const { message, advice } = error as OxidizeError;
  const box = element("error");
  box.textContent = [message, advice].filter(Boolean).join(". ");
  box.hidden = false;
}

async function load(next: Chosen): Promise<void> {
  chosen = next;
  element("error").hidden = true;
  element("loading-title").textContent = next.name;
  element("pause").hidden = false;
  element("resume").hidden = true;
  element("progress-text").textContent = "Connecting";
  element<HTMLProgressElement>("progress").removeAttribute("value");
  show("loading");
  const controller = new AbortController();
  loading = controller;
  const { contextSize, threads } = readSettings();
  const rate = new Rate();
  // Without it, the browser may delete the model when the disk is full.
  void Oxidize.models.persist();
  try {
    model = await Oxidize.load(next.source, {
      signal: controller.signal,
      contextSize,
      threads,
      onProgress: (progress) => showProgress(progress, rate),
    });
    info = await model.info();
    if (!info.generatesText) {
      throw Object.assign(new Error(`${next.name} computes embeddings and cannot chat`), { advice: "Choose another model." });
    }
    element("model-name").textContent = next.name;
    show("chat");
    await showStatus("");
    input.focus();
  } catch (error) {
    if (loading !== controller) return;
    if ((error as Error).name === "AbortError") {
      element("progress-text").textContent = "Paused. What was downloaded is kept.";
      element("pause").hidden = true;
      element("resume").hidden = false;
      return;
    }
    await pick();
    showError(error);
  }
}

/** Speed of a download, over the last seconds. */
class Rate {
  #samples: { time: number; bytes: number }[] = [];

  add(bytes: number): number {
    const time = performance.now();
    this.#samples.push({ time, bytes });
    this.#samples = this.#samples.filter((sample) => time - sample.time < 4000);
    const [first] = this.#samples;
    return first && time > first.time ? (1000 * (bytes - first.bytes)) / (time - first.time) : 0;
  }
}

function showProgress({ phase, loaded, total }: LoadProgress, rate: Rate): void {
  const bar = element<HTMLProgressElement>("progress");
  if (total) bar.value = loaded / total;
  else bar.removeAttribute("value");
  element("pause").hidden = phase !== "downloading";
  let text: string;
  switch (phase) {
    case "waiting":
      text = "Another tab downloads this model";
      break;
    case "downloading": {
      const speed = rate.add(loaded);
      const left = total && speed > 0 ? `, ${Math.ceil((total - loaded) / speed)} s left` : "";
      const of = total ? ` of ${megabytes(total)}` : "";
      text = `${megabytes(loaded)}${of}${speed > 0 ? `, ${megabytes(speed)}/s` : ""}${left}`;
      break;
    }
    case "reading":
      text = "Reading from this device";
      break;
    case "preparing":
      text = "Preparing";
      break;
  }
  element("progress-text").textContent = text;
}

async function showStatus(speed: string): Promise<void> {
  if (!model) return;
  info = await model.info();
  const parts = [
    speed,
    `${info.threads} ${info.threads === 1 ? "thread" : "threads"}`,
    `${megabytes(info.memoryBytes)} of memory`,
    `context ${info.contextSize}`,
    info.cached ? "works offline" : `not kept: ${info.cacheReason}`,
  ];
  element("status").textContent = parts.filter(Boolean).join(" · ");
}

async function ask(): Promise<void> {
  const question = input.value.trim();
  if (!model || !question || conversation.isBusy) return;
  input.value = "";
  resize();
  element("send").hidden = true;
  element("stop").hidden = false;
  try {
    await showStatus(await conversation.ask(model, question));
  } catch (error) {
    if (["internal", "out-of-memory", "unloaded"].includes((error as OxidizeError).code)) {
      await pick();
      showError(error);
    }
  } finally {
    element("send").hidden = false;
    element("stop").hidden = true;
    input.focus();
  }
}

function resize(): void {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  void ask();
});
input.addEventListener("input", resize);
input.addEventListener("keydown", (event) => {
  const isPhone = matchMedia("(pointer: coarse)").matches;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isPhone) {
    event.preventDefault();
    void ask();
  }
});
element("stop").addEventListener("click", () => conversation.stop());
element("new-chat").addEventListener("click", () => {
  conversation.clear();
  input.focus();
});
element("model-name").addEventListener("click", () => void pick());
element("pause").addEventListener("click", () => loading?.abort());
element("resume").addEventListener("click", () => chosen && void load(chosen));
element("cancel").addEventListener("click", () => {
  const controller = loading;
  loading = undefined;
  controller?.abort();
  void pick();
});
element("url-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const { value } = element<HTMLInputElement>("url");
  void load({ name: value.split("/").pop() || value, source: value });
});
element<HTMLInputElement>("file").addEventListener("change", ({ target }) => {
  const file = (target as HTMLInputElement).files?.[0];
  if (file) void load({ name: file.name, source: file });
});
element("open-settings").addEventListener("click", () => {
  const backend = info ? `${info.name ?? info.architecture}: ${info.backend}, build ${info.build}; ${info.reasons.join("; ")}` : "";
  void editSettings(backend);
});

const THEMES = { auto: "◐", light: "☀", dark: "☾" } as const;
const root = document.documentElement;
function showTheme(): void {
  const theme = (root.dataset.theme ?? "auto") as keyof typeof THEMES;
  element("theme").textContent = THEMES[theme];
  element("theme").title = `Theme: ${theme}`;
}
element("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  root.dataset.theme = names[(names.indexOf(root.dataset.theme ?? "auto") + 1) % names.length];
  localStorage.setItem("theme", root.dataset.theme ?? "auto");
  showTheme();
});
showTheme();

if (import.meta.env.PROD && "serviceWorker" in navigator) {
  void navigator.serviceWorker.register("./service-worker.js").then(async () => {
    await navigator.serviceWorker.ready;
    // The service worker sends the headers that threads need; they apply from the next visit of the page.
    if (!crossOriginIsolated && !sessionStorage.getItem("reloaded") && !loading) {
      sessionStorage.setItem("reloaded", "yes");
      location.reload();
    }
  });
}

void pick();
