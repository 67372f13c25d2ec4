import { type CachedModel, Oxidize, type ModelSource } from "oxidize";
import { element, megabytes } from "./element";

/** A model that the page offers. */
interface Offer {
  name: string;
  url: string;
  bytes?: number;
  sha256?: string;
  hint?: string;
}

/** A model that was chosen. */
export interface Chosen {
  name: string;
  source: ModelSource;
}

/** Shows the models, and calls `choose` with the one that the user takes. */
export async function showPicker(choose: (chosen: Chosen) => void): Promise<void> {
  const [offers, cached, storage] = await Promise.all([
    readOffers(),
    Oxidize.models.list(),
    Oxidize.models.storage(),
  ]);
  const list = element("models");
  const others = cached
    .filter(({ url }) => !offers.some((offer) => offer.url === url))
    .map(({ name, url, total }): Offer => ({ name, url, bytes: total ?? undefined }));
  const items = [...offers, ...others].map((offer) => {
    const kept = cached.find(({ url }) => url === offer.url);
    return item(offer, kept, choose);
  });
  list.replaceChildren(...items);
  element("storage").textContent = storage.quota
    ? `${megabytes(storage.usage)} of ${megabytes(storage.quota)} of storage in use${storage.persistent ? ", kept for good" : ""}`
    : "";
}

async function readOffers(): Promise<Offer[]> {
  try {
    const response = await fetch("./models.json");
    const offers = (await response.json()) as Offer[];
    return offers.map((offer) => ({ ...offer, url: new URL(offer.url, location.href).href }));
  } catch {
    // Models of earlier visits are still there.
    return [];
  }
}

function item(offer: Offer, kept: CachedModel | undefined, choose: (chosen: Chosen) => void): HTMLLIElement {
  const entry = document.createElement("li");
  const text = document.createElement("div");
  const name = document.createElement("strong");
  name.textContent = offer.name;
  const notes = document.createElement("span");
  notes.className = "muted";
  const state = !kept
    ? undefined
    : kept.complete
      ? "on this device"
      : `${kept.total ? Math.floor((100 * kept.bytes) / kept.total) : "?"}% downloaded`;
  const size = offer.bytes === undefined ? undefined : `${megabytes(offer.bytes)}, ${speed(offer.bytes)}`;
  notes.textContent = [size, state, offer.hint].filter(Boolean).join(" · ");
  text.append(name, notes);
  const load = document.createElement("button");
  load.textContent = kept ? (kept.complete ? "Open" : "Resume") : "Download";
  load.addEventListener("click", () => {
    choose({ name: offer.name, source: { url: offer.url, sha256: offer.sha256 } });
  });
  entry.append(text, load);
  if (kept) {
    const remove = document.createElement("button");
    remove.className = "quiet";
    remove.textContent = "Delete";
    remove.addEventListener("click", async () => {
      remove.disabled = true;
      await Oxidize.models.delete(offer.url);
      await showPicker(choose);
    });
    entry.append(remove);
  }
  return entry;
}

/** What to expect of a model of this size: each token reads all of it. */
function speed(bytes: number): string {
  if (bytes < 3e8) return "fast";
  if (bytes < 1.2e9) return "moderate";
  return "slow, needs much memory";
}
