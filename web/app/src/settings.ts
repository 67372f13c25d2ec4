import { element } from "./element";

/** Settings of the conversation, which the browser keeps. */
export interface Settings {
  system: string;
  temperature?: number;
  topP?: number;
  topK?: number;
  maxTokens?: number;
  contextSize?: number;
  threads?: number;
  thinking: "" | "on" | "off";
}

const KEY = "settings";
const NUMBERS = ["temperature", "topP", "topK", "maxTokens", "contextSize", "threads"] as const;
const DEFAULTS: Settings = { system: "", thinking: "" };

/** The settings that the browser has kept. */
export function readSettings(): Settings {
  try {
    return { ...DEFAULTS, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Settings>) };
  } catch {
    return DEFAULTS;
  }
}

/** Shows the settings, and keeps them if the user saves. */
export function editSettings(backend: string): Promise<void> {
  const dialog = element<HTMLDialogElement>("settings");
  const form = dialog.querySelector("form") as HTMLFormElement;
  const field = (name: string) => form.elements.namedItem(name) as HTMLInputElement;
  const settings = readSettings();
  field("system").value = settings.system;
  field("thinking").value = settings.thinking;
  for (const name of NUMBERS) field(name).value = settings[name]?.toString() ?? "";
  element("backend").textContent = backend;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        if (dialog.returnValue === "reset") localStorage.removeItem(KEY);
        if (dialog.returnValue === "save") {
          const kept: Settings = {
            system: field("system").value.trim(),
            thinking: field("thinking").value as Settings["thinking"],
          };
          for (const name of NUMBERS) {
            const { valueAsNumber } = field(name);
            if (Number.isFinite(valueAsNumber)) kept[name] = valueAsNumber;
          }
          localStorage.setItem(KEY, JSON.stringify(kept));
        }
        resolve();
      },
      { once: true },
    );
  });
}
