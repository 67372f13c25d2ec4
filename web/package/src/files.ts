import { download, type Remote, type Sink, type Version } from "./download.js";
import { AbortError, OxidizeError } from "./errors.js";
import type { WorkerHost } from "./host.js";
import type { PortableFile } from "./protocol.js";
import { nameOf } from "./sources.js";
import { type CacheRecord, keyOf, openStore, type Store, type SyncFile, withLock } from "./store.js";
import type { LoadProgress } from "./types.js";

/** Bytes that are read at a time. */
const PIECE = 8 << 20;
/** Bytes between two records of an incomplete file. */
const CHECKPOINT = 16 << 20;
/** Bytes of storage that are left free. */
const RESERVE = 16 << 20;

/** SHA-256 and a fast checksum of bytes that arrive in pieces. */
export interface Digest {
  update(bytes: Uint8Array): void;
  sha256(): string;
  fast(): string;
  free(): void;
}

/** What placing a file needs of the engine. */
export interface Place {
  host: WorkerHost;
  signal: AbortSignal;
  useCache: boolean;
  cachedOnly: boolean;
  report(progress: LoadProgress): void;
  digest(): Digest;
  /** Makes room for a file and returns the address of its bytes. */
  allocate(name: string, bytes: number): number;
  /** Bytes of the memory, valid until more is allocated. */
  view(address: number, bytes: number): Uint8Array;
  /** Checksum of the file that was placed last. */
  checksum(): string;
}

/** Result of placing a file. */
export interface Placed {
  cached: boolean;
  /** Reason why the file is not kept. */
  reason: string | null;
}

/** Brings a file into memory: from the network, the cache, or what the page has given. */
export async function placeFile(file: PortableFile, place: Place): Promise<Placed> {
  switch (file.kind) {
    case "url":
      return placeUrl(file, place);
    case "bytes":
      checkMagic(file.name, file.bytes);
      copy(place, place.allocate(file.name, file.bytes.length), 0, file.bytes);
      return given;
    case "blob":
      await readBlob(file.blob, file.name, place);
      return given;
    case "stream":
      await placeStream(file.stream, file.name, place);
      return given;
    case "path":
      readPath(file.path, file.name, place);
      return given;
  }
}

const given: Placed = { cached: false, reason: "the page has given the bytes" };

async function placeUrl(file: Extract<PortableFile, { kind: "url" }>, place: Place): Promise<Placed> {
  const name = nameOf(file.url);
  const isRemote = /^https?:/.test(file.url);
  const store = place.useCache && isRemote ? await openStore() : undefined;
  if (!store) {
    if (place.cachedOnly) throw notCached(file.url);
    const reason = !isRemote
      ? "the bytes are not at a web address"
      : place.useCache
        ? "this browser window has no private file system"
        : "the page has turned the cache off";
    await downloadToMemory(file, name, place, file.sha256);
    return { cached: false, reason };
  }
  const key = await keyOf(file.url);
  const wait = () => place.report({ phase: "waiting", file: name, loaded: 0 });
  return withLock(key, place.signal, wait, async () => {
    let record = await store.record(key);
    if (record && file.sha256 && record.sha256 !== file.sha256) {
      // The page asks for other bytes than those of the last visit.
      await store.delete(key);
      record = undefined;
    }
    if (record) {
      if (await readRecord(store, record, name, place)) return { cached: true, reason: null };
      await store.delete(key);
      const message = `${name}: the copy in the browser's storage is damaged`;
      // The memory that it took stays allocated, so loading starts over.
      throw new OxidizeError("corrupt-cache", message);
    }
    if (place.cachedOnly) throw notCached(file.url);
    const transfer = new Transfer(store, key, file, name, place);
    const complete = await transfer.run();
    if (!complete) return { cached: false, reason: transfer.reason };
    if (!(await readRecord(store, complete, name, place))) {
      await store.delete(key);
      throw new OxidizeError("corrupt-cache", `${name}: the browser's storage does not return what was written`);
    }
    return { cached: true, reason: null };
  });
}

function notCached(url: string): OxidizeError {
  return new OxidizeError("not-cached", `${url} is not in the browser's storage`);
}

/** A download to the browser's storage, which falls back to memory if the storage is full. */
class Transfer implements Sink {
  bytes = 0;
  /** Reason why the file is in memory instead. */
  reason: string | null = null;
  #version: Version = { etag: null, total: null };
  #resumed = 0;
  #checkpoint = 0;
  #head = new Uint8Array(0);
  #disk: SyncFile | undefined;
  #memory: MemorySink | undefined;
  #digest: Digest;

  constructor(
    private store: Store,
    private key: string,
    private remote: Remote & { sha256?: string },
    private name: string,
    private place: Place,
  ) {
    this.#digest = place.digest();
  }

  /** The record of the file, or undefined if it is in memory. */
  async run(): Promise<CacheRecord | undefined> {
    const { store, key, remote, place } = this;
    let version: Version | undefined;
    try {
      version = await this.#resume();
      version = await download(remote, version, this, place.signal);
      const sha256 = this.#digest.sha256();
      if (remote.sha256 && sha256 !== remote.sha256) {
        this.#close();
        await store.deletePart(key);
        throw new OxidizeError("checksum", `${this.name}: the SHA-256 is ${sha256}, not ${remote.sha256}`);
      }
      if (this.#memory) {
        this.#memory.finish();
        return undefined;
      }
      this.#disk?.flush();
      const checksum = this.#digest.fast();
      this.#close();
      const { url } = remote;
      const record = { url, bytes: this.bytes, sha256, checksum, etag: version.etag, time: Date.now() };
      return await store.finish(key, record);
    } catch (error) {
      const isKept = this.bytes > 0 && keepsPart(error);
      if (this.#disk && isKept) await this.#record().catch(() => {});
      this.#close();
      if (!isKept) await store.deletePart(key).catch(() => {});
      throw error;
    } finally {
      this.#digest.free();
    }
  }

  /** Checks what an earlier download has left. */
  async #resume(): Promise<Version | undefined> {
    const { store, key, place } = this;
    const part = await store.part(key);
    try {
      this.#disk = await store.openPart(key);
    } catch (error) {
      this.#toMemory(error);
      return undefined;
    }
    if (!part || part.url !== this.remote.url || part.bytes === 0) return undefined;
    const piece = new Uint8Array(Math.min(PIECE, part.bytes));
    for (let at = 0; at < part.bytes; at += piece.length) {
      const n = Math.min(piece.length, part.bytes - at);
      if (this.#disk.read(piece.subarray(0, n), { at }) !== n) return this.#restart();
      this.#digest.update(piece.subarray(0, n));
      if (place.signal.aborted) throw new AbortError();
    }
    if (this.#digest.sha256() !== part.sha256) return this.#restart();
    this.#disk.truncate(part.bytes);
    this.bytes = this.#resumed = this.#checkpoint = part.bytes;
    this.#version = { etag: part.etag, total: part.total };
    return this.#version;
  }

  #restart(): undefined {
    this.#digest.free();
    this.#digest = this.place.digest();
    this.bytes = this.#resumed = this.#checkpoint = 0;
    this.#head = new Uint8Array(0);
    return undefined;
  }

  async begin(start: number, version: Version): Promise<void> {
    this.#version = version;
    if (start === 0) {
      this.#restart();
      this.#memory?.begin(0, version);
    }
    if (this.#disk) {
      if (start === 0) this.#disk.truncate(0);
      const needed = version.total === null ? 0 : version.total - start;
      const { quota, usage } = (await navigator.storage?.estimate?.()) ?? {};
      if (quota !== undefined && usage !== undefined && needed + RESERVE > quota - usage) {
        const free = Math.max(0, quota - usage);
        this.#toMemory(new Error(`it needs ${needed} bytes, and the site may use ${free} more`));
      }
    }
    this.#report();
  }

  async write(chunk: Uint8Array): Promise<void> {
    if (this.bytes < 4) {
      const head = new Uint8Array([...this.#head, ...chunk.subarray(0, 4)]);
      this.#head = head;
      if (head.length >= 4) checkMagic(this.name, head);
    }
    if (this.#disk) {
      try {
        const written = this.#disk.write(chunk, { at: this.bytes });
        if (written !== chunk.length) throw new DOMException("the disk is full", "QuotaExceededError");
      } catch (error) {
        this.#toMemory(error);
      }
    }
    this.#memory?.write(chunk);
    this.#digest.update(chunk);
    this.bytes += chunk.length;
    this.#report();
    if (this.#disk && this.bytes - this.#checkpoint >= CHECKPOINT) await this.#record();
  }

  /** Records what is on disk, so that a later download can resume. */
  async #record(): Promise<void> {
    this.#disk?.flush();
    this.#checkpoint = this.bytes;
    const { etag, total } = this.#version;
    const record = { url: this.remote.url, bytes: this.bytes, total, etag, sha256: this.#digest.sha256() };
    await this.store.writePart(this.key, record);
  }

  /** Goes on in memory, with what is on disk. */
  #toMemory(error: unknown): void {
    this.reason = `the browser's storage has no room: ${(error as Error).message}`;
    const memory = new MemorySink(this.name, this.place);
    memory.begin(0, this.#version);
    const piece = new Uint8Array(Math.min(PIECE, this.bytes));
    for (let at = 0; at < this.bytes; at += piece.length) {
      const rest = piece.subarray(0, Math.min(piece.length, this.bytes - at));
      if (this.#disk?.read(rest, { at }) !== rest.length) throw new OxidizeError("quota", this.reason);
      memory.write(rest.slice());
    }
    this.#memory = memory;
    this.#close();
    void this.store.deletePart(this.key).catch(() => {});
  }

  #close(): void {
    this.#disk?.close();
    this.#disk = undefined;
  }

  #report(): void {
    const { bytes: loaded, name: file } = this;
    const total = this.#version.total ?? undefined;
    this.place.report({ phase: "downloading", file, loaded, total, resumed: this.#resumed });
  }
}

/** True if the bytes that arrived before an error are worth keeping. */
function keepsPart(error: unknown): boolean {
  return error instanceof OxidizeError && (error.code === "aborted" || error.code === "network");
}

/** A file that arrives in memory. */
class MemorySink implements Sink {
  bytes = 0;
  #address: number | undefined;
  #total = 0;
  #chunks: Uint8Array[] = [];

  constructor(
    private name: string,
    private place: Place,
  ) {}

  begin(start: number, { total }: Version): void {
    if (start === 0) {
      this.bytes = 0;
      this.#chunks = [];
    }
    if (total !== null && (this.#address === undefined || this.#total !== total)) {
      if (this.#address !== undefined) {
        throw new OxidizeError("network", `${this.name}: the file changed while it was downloaded`);
      }
      this.#total = total;
      this.#address = this.place.allocate(this.name, total);
      for (const chunk of this.#chunks.splice(0)) this.#put(chunk);
    }
  }

  write(chunk: Uint8Array): void {
    if (this.#address === undefined) {
      this.#chunks.push(chunk);
      this.bytes += chunk.length;
      return;
    }
    if (this.bytes + chunk.length > this.#total) {
      throw new OxidizeError("network", `${this.name}: more than ${this.#total} bytes arrived`);
    }
    this.#put(chunk);
  }

  #put(chunk: Uint8Array): void {
    copy(this.place, this.#address as number, this.bytes, chunk);
    this.bytes += chunk.length;
  }

  /** Moves the bytes of a file of unknown length to their place. */
  finish(): void {
    if (this.#address !== undefined) return;
    const [total, chunks] = [this.bytes, this.#chunks.splice(0)];
    this.#total = total;
    this.bytes = 0;
    this.#address = this.place.allocate(this.name, total);
    for (const chunk of chunks) this.#put(chunk);
  }
}

async function downloadToMemory(remote: Remote, name: string, place: Place, sha256?: string): Promise<void> {
  const memory = new MemorySink(name, place);
  let digest = place.digest();
  let version: Version = { etag: null, total: null };
  const report = () => {
    place.report({ phase: "downloading", file: name, loaded: memory.bytes, total: version.total ?? undefined });
  };
  const sink: Sink = {
    get bytes() {
      return memory.bytes;
    },
    begin(start, now) {
      version = now;
      if (start === 0) {
        digest.free();
        digest = place.digest();
      }
      memory.begin(start, now);
      report();
    },
    write(chunk) {
      if (memory.bytes === 0 && chunk.length >= 4) checkMagic(name, chunk);
      digest.update(chunk);
      memory.write(chunk);
      report();
    },
  };
  try {
    await download(remote, undefined, sink, place.signal);
    const found = digest.sha256();
    if (sha256 && found !== sha256) {
      throw new OxidizeError("checksum", `${name}: the SHA-256 is ${found}, not ${sha256}`);
    }
    memory.finish();
  } finally {
    digest.free();
  }
}

/** Reads a complete file. False if its checksum is wrong. */
async function readRecord(store: Store, record: CacheRecord, name: string, place: Place): Promise<boolean> {
  const file = await store.open(record);
  if (file instanceof Blob) {
    if (file.size !== record.bytes) return false;
    await readBlob(file, name, place);
  } else {
    try {
      if (file.getSize() !== record.bytes) return false;
      await readSync((buffer, at) => file.read(buffer, { at }), record.bytes, name, place);
    } finally {
      file.close();
    }
  }
  return place.checksum() === record.checksum;
}

function readPath(path: string, name: string, place: Place): void {
  if (!place.host.openFile) throw new OxidizeError("invalid-argument", `${path}: there are no files here`);
  const file = place.host.openFile(path);
  try {
    const head = new Uint8Array(4);
    checkMagic(name, head.subarray(0, file.read(head, 0)));
    const address = place.allocate(name, file.size);
    for (let at = 0; at < file.size; ) {
      const n = file.read(place.view(address + at, Math.min(PIECE, file.size - at)), at);
      if (n === 0) throw new OxidizeError("broken-model", `${path}: the file is shorter than expected`);
      at += n;
      place.report({ phase: "reading", file: name, loaded: at, total: file.size });
    }
  } finally {
    file.close();
  }
}

/** Reads a file straight into memory. */
async function readSync(
  read: (buffer: Uint8Array, at: number) => number,
  total: number,
  name: string,
  place: Place,
): Promise<void> {
  const address = place.allocate(name, total);
  // Some browsers do not read into memory that is shared.
  const isShared = !(place.view(address, 0).buffer instanceof ArrayBuffer);
  const bounce = isShared ? new Uint8Array(Math.min(PIECE, total)) : undefined;
  for (let at = 0; at < total; ) {
    const wanted = Math.min(PIECE, total - at);
    const target = bounce?.subarray(0, wanted) ?? place.view(address + at, wanted);
    const n = read(target, at);
    if (n === 0) return;
    if (bounce) place.view(address + at, n).set(bounce.subarray(0, n));
    at += n;
    place.report({ phase: "reading", file: name, loaded: at, total });
    await breathe(place.signal);
  }
}

async function readBlob(blob: Blob, name: string, place: Place): Promise<void> {
  checkMagic(name, new Uint8Array(await blob.slice(0, 4).arrayBuffer()));
  const address = place.allocate(name, blob.size);
  for (let at = 0; at < blob.size; at += PIECE) {
    let piece: ArrayBuffer;
    try {
      piece = await blob.slice(at, Math.min(at + PIECE, blob.size)).arrayBuffer();
    } catch (error) {
      throw new OxidizeError("broken-model", `${name} cannot be read: ${(error as Error).message}`);
    }
    copy(place, address, at, new Uint8Array(piece));
    place.report({ phase: "reading", file: name, loaded: at + piece.byteLength, total: blob.size });
    if (place.signal.aborted) throw new AbortError();
  }
}

async function placeStream(stream: ReadableStream<Uint8Array>, name: string, place: Place): Promise<void> {
  const memory = new MemorySink(name, place);
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (place.signal.aborted) {
      await reader.cancel();
      throw new AbortError();
    }
    if (!(value instanceof Uint8Array)) {
      throw new OxidizeError("invalid-argument", "the stream of a model has chunks of type Uint8Array");
    }
    if (memory.bytes === 0 && value.length >= 4) checkMagic(name, value);
    memory.write(value);
    place.report({ phase: "downloading", file: name, loaded: memory.bytes });
  }
  memory.finish();
}

/** Lets messages of the page in. */
async function breathe(signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 0));
  if (signal.aborted) throw new AbortError();
}

function copy(place: Place, address: number, offset: number, bytes: Uint8Array): void {
  place.view(address + offset, bytes.length).set(bytes);
}

/** Refuses what is no GGUF file before much of it is downloaded. */
function checkMagic(name: string, bytes: Uint8Array): void {
  const magic = [0x47, 0x47, 0x55, 0x46];
  if (bytes.length >= 4 && magic.every((byte, i) => bytes[i] === byte)) return;
  throw new OxidizeError("not-a-model", `${name} is no GGUF file`);
}
