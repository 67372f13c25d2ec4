import { AbortError, OxidizeError } from "./errors.js";

/** A file to download. */
export interface Remote {
  url: string;
  headers?: Record<string, string>;
}

/** Identity of the bytes at a URL. */
export interface Version {
  etag: string | null;
  total: number | null;
}

/** Where downloaded bytes go. */
export interface Sink {
  /** Bytes that are there. */
  readonly bytes: number;
  /** Starts a new connection: `start` is 0 or the number of bytes that are there. */
  begin(start: number, version: Version): void | Promise<void>;
  write(chunk: Uint8Array): void | Promise<void>;
}

/** Attempts without a byte of progress. */
const ATTEMPTS = 4;
const FIRST_DELAY = 250;

/** An error that another attempt may not have. */
class Interrupted extends Error {}

/** Downloads the rest of a file. Broken connections are resumed where the server has ranges. */
export async function download(
  remote: Remote,
  known: Version | undefined,
  sink: Sink,
  signal: AbortSignal,
): Promise<Version> {
  let version = known;
  let failures = 0;
  for (;;) {
    const before = sink.bytes;
    try {
      version = await connect(remote, version, sink, signal);
      return version;
    } catch (error) {
      if (signal.aborted) throw new AbortError();
      if (!(error instanceof Interrupted)) throw error;
      failures = sink.bytes > before ? 1 : failures + 1;
      if (failures >= ATTEMPTS) throw new OxidizeError("network", `${remote.url}: ${error.message}`, { cause: error });
    }
    await delay(FIRST_DELAY * 2 ** (failures - 1), signal);
  }
}

async function connect(
  remote: Remote,
  known: Version | undefined,
  sink: Sink,
  signal: AbortSignal,
): Promise<Version> {
  let start = sink.bytes;
  let response = await request(remote, start, signal);
  let version = versionOf(response);
  if (start > 0 && !continues(response, start, version, known)) {
    if (response.status === 206 || response.status === 416) {
      // Another file is there now, or a range that was not asked for.
      await response.body?.cancel();
      response = await request(remote, 0, signal);
      version = versionOf(response);
    }
    start = 0;
  }
  if (!response.ok) throw statusError(remote, response);
  if (!response.body) throw new OxidizeError("network", `${remote.url}: the response is empty`);
  // A proxy may send no ETag with a range.
  version.etag ??= start > 0 ? (known?.etag ?? null) : null;
  await sink.begin(start, version);
  const reader = response.body.getReader();
  try {
    for (;;) {
      let piece: ReadableStreamReadResult<Uint8Array>;
      try {
        piece = await reader.read();
      } catch (error) {
        throw new Interrupted(`the connection broke (${(error as Error).message})`);
      }
      if (signal.aborted) throw new AbortError();
      if (piece.done) break;
      await sink.write(piece.value);
    }
  } finally {
    // Frees the connection; after the end it does nothing.
    void reader.cancel().catch(() => {});
  }
  const { total } = version;
  if (total !== null && sink.bytes < total) {
    throw new Interrupted(`the connection ended after ${sink.bytes} of ${total} bytes`);
  }
  if (total !== null && sink.bytes > total) {
    throw new OxidizeError("network", `${remote.url}: ${sink.bytes} bytes arrived instead of ${total}`);
  }
  return version;
}

async function request({ url, headers }: Remote, start: number, signal: AbortSignal): Promise<Response> {
  try {
    return await fetch(url, {
      // A range of this form needs no permission of another origin.
      headers: start > 0 ? { ...headers, Range: `bytes=${start}-` } : { ...headers },
      signal,
      cache: "no-store",
    });
  } catch (error) {
    throw new Interrupted(`no connection, or the server does not allow this page (${(error as Error).message})`);
  }
}

/** True if the response has the rest of the bytes that are there. */
function continues(response: Response, start: number, version: Version, known: Version | undefined): boolean {
  if (response.status !== 206) return false;
  const range = /^bytes (\d+)-/.exec(response.headers.get("content-range") ?? "");
  // Another origin may hide the header; then the size of the rest must fit.
  if (range && Number(range[1]) !== start) return false;
  if (known?.etag && version.etag && known.etag !== version.etag) return false;
  if (known?.total != null && version.total !== null && known.total !== version.total) return false;
  if (!range && version.total === null) {
    const rest = Number(response.headers.get("content-length"));
    if (!known?.total || start + rest !== known.total) return false;
    version.total = known.total;
  }
  return true;
}

function versionOf(response: Response): Version {
  const etag = response.headers.get("etag");
  const range = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "");
  const length = response.headers.get("content-length");
  const encoded = response.headers.get("content-encoding");
  let total: number | null = null;
  if (range) total = Number(range[1]);
  else if (response.status === 200 && length !== null && (encoded === null || encoded === "identity")) {
    total = Number(length);
  }
  return { etag, total };
}

function statusError(remote: Remote, response: Response): Error {
  const text = `HTTP ${response.status} ${response.statusText}`.trim();
  if (response.status >= 500 || response.status === 429 || response.status === 408) return new Interrupted(text);
  return new OxidizeError("network", `${remote.url}: ${text}`);
}

function delay(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(done, milliseconds);
    function done() {
      signal.removeEventListener("abort", stop);
      resolve();
    }
    function stop() {
      clearTimeout(timer);
      reject(new AbortError());
    }
    signal.addEventListener("abort", stop, { once: true });
  });
}
