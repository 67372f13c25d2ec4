// Keeps the application for visits without a network. Models are kept by the package.

interface Worker {
  addEventListener(type: string, listener: (event: WorkerEvent) => void): void;
  skipWaiting(): Promise<void>;
  clients: { claim(): Promise<void> };
}

interface WorkerEvent extends Event {
  waitUntil(work: Promise<unknown>): void;
  respondWith(response: Promise<Response>): void;
  request: Request;
}

/** Files of this version, filled in by the build. */
declare const __FILES__: string[];

const worker = globalThis as unknown as Worker;
const files = __FILES__;
// Names of files contain hashes, so that another list is another version.
const CACHE = `oxidize-app-${hash(files.join())}`;

function hash(text: string): string {
  let value = 5381;
  for (const char of text) value = ((value * 33) ^ (char.codePointAt(0) ?? 0)) >>> 0;
  return value.toString(36);
}

worker.addEventListener("install", (event) => {
  const work = async () => {
    const cache = await caches.open(CACHE);
    await cache.addAll(files.map((file) => new Request(file, { cache: "reload" })));
    await worker.skipWaiting();
  };
  event.waitUntil(work());
});

worker.addEventListener("activate", (event) => {
  const work = async () => {
    for (const name of await caches.keys()) {
      if (name.startsWith("oxidize-app-") && name !== CACHE) await caches.delete(name);
    }
    await worker.clients.claim();
  };
  event.waitUntil(work());
});

worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== location.origin || request.headers.has("range")) return;
  if (url.pathname.endsWith(".gguf")) return;
  event.respondWith(answer(request));
});

async function answer(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  const isPage = request.mode === "navigate";
  const kept = await cache.match(isPage ? "./" : request, { ignoreSearch: isPage });
  if (!isPage && kept) return isolated(kept);
  try {
    // Pages come from the network if there is one, so that a new version is seen at once.
    return isolated(await fetch(request));
  } catch (error) {
    if (kept) return isolated(kept);
    throw error;
  }
}

/** The response with the headers of cross-origin isolation, for hosts that do not send them: threads need them. */
function isolated(response: Response): Response {
  if (response.type === "opaque" || response.status === 0) return response;
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  headers.set("Cross-Origin-Resource-Policy", "same-origin");
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
