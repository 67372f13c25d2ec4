/** Files that this site keeps in the browser's private file system (OPFS). */

/** The part of `FileSystemSyncAccessHandle` that is used. Only workers have it. */
export interface SyncFile {
  read(buffer: Uint8Array, options?: { at?: number }): number;
  write(buffer: Uint8Array, options?: { at?: number }): number;
  truncate(size: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
}

interface FileHandle extends FileSystemFileHandle {
  createSyncAccessHandle(options?: { mode?: string }): Promise<SyncFile>;
  move?(name: string): Promise<void>;
}

/** Record of a complete file. A file without one does not exist. */
export interface CacheRecord {
  url: string;
  /** Name of the file that has the bytes. */
  file: string;
  bytes: number;
  sha256: string;
  /** XXH64, which is compared at every load. */
  checksum: string;
  etag: string | null;
  /** Unix time in milliseconds. */
  time: number;
}

/** Record of a file that is not complete: the bytes that are known to be on disk. */
export interface PartRecord {
  url: string;
  bytes: number;
  total: number | null;
  etag: string | null;
  /** SHA-256 of these bytes. */
  sha256: string;
}

const DIRECTORY = "oxidize";
const RECORD = ".json";
const PART = ".part";

/** Directory of the models; undefined where there is no such storage, as in private windows of some browsers. */
export async function openStore(): Promise<Store | undefined> {
  try {
    const root = await navigator.storage.getDirectory();
    return new Store(await root.getDirectoryHandle(DIRECTORY, { create: true }));
  } catch {
    return undefined;
  }
}

/** Name of the files of a URL. */
export async function keyOf(url: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
  const hex = Array.from(new Uint8Array(digest).subarray(0, 12), (byte) => byte.toString(16).padStart(2, "0"));
  return hex.join("");
}

/** Runs `work` while no other tab writes the files of `key`. `onWait` is called if another one does now. */
export async function withLock<T>(
  key: string,
  signal: AbortSignal | undefined,
  onWait: () => void,
  work: () => Promise<T>,
): Promise<T> {
  if (!navigator.locks) return work();
  const name = `oxidize:${key}`;
  let result: { value: T } | undefined;
  await navigator.locks.request(name, { ifAvailable: true }, async (lock) => {
    if (lock) result = { value: await work() };
  });
  if (result) return result.value;
  onWait();
  return (await navigator.locks.request(name, { signal }, work)) as T;
}

/** The directory of the models. */
export class Store {
  #directory: FileSystemDirectoryHandle;

  constructor(directory: FileSystemDirectoryHandle) {
    this.#directory = directory;
  }

  /** Record of a complete file, if its bytes are there. */
  async record(key: string): Promise<CacheRecord | undefined> {
    const record = await this.#readJson<CacheRecord>(key + RECORD);
    if (!record || typeof record.file !== "string" || typeof record.bytes !== "number") return undefined;
    const size = await this.#size(record.file);
    return size === record.bytes ? record : undefined;
  }

  /** Record of an incomplete file, if its bytes are there. */
  async part(key: string): Promise<PartRecord | undefined> {
    const record = await this.#readJson<PartRecord>(key + PART + RECORD);
    const size = await this.#size(key + PART);
    return record && typeof record.bytes === "number" && size !== undefined && size >= record.bytes ? record : undefined;
  }

  /** Opens the incomplete file for writing. Only in a worker. */
  async openPart(key: string): Promise<SyncFile> {
    const handle = (await this.#directory.getFileHandle(key + PART, { create: true })) as FileHandle;
    return handle.createSyncAccessHandle();
  }

  /** Writes the record of an incomplete file. */
  writePart(key: string, record: PartRecord): Promise<void> {
    return this.#writeJson(key + PART + RECORD, record);
  }

  /** Makes the incomplete file complete: renames it, then writes its record. */
  async finish(key: string, record: Omit<CacheRecord, "file">): Promise<CacheRecord> {
    const handle = (await this.#directory.getFileHandle(key + PART)) as FileHandle;
    let file = key + PART;
    await this.#remove(key + RECORD);
    if (handle.move) {
      await this.#remove(key);
      await handle.move(key);
      file = key;
    }
    const complete: CacheRecord = { ...record, file };
    await this.#writeJson(key + RECORD, complete);
    await this.#remove(key + PART + RECORD);
    return complete;
  }

  /** Opens a complete file for reading: as a synchronous file where several tabs may have one, else as a `File`. */
  async open(record: CacheRecord): Promise<SyncFile | File> {
    const handle = (await this.#directory.getFileHandle(record.file)) as FileHandle;
    try {
      // Browsers that do not know the mode lock the file, and refuse if another tab reads it.
      return await handle.createSyncAccessHandle({ mode: "read-only" });
    } catch {
      return handle.getFile();
    }
  }

  /** Removes all files of a key. */
  async delete(key: string): Promise<void> {
    // The record first: without it, the rest is not a model any more.
    const record = await this.#readJson<CacheRecord>(key + RECORD);
    await this.#remove(key + RECORD);
    await this.#remove(key + PART + RECORD);
    if (record?.file) await this.#remove(record.file);
    await this.#remove(key);
    await this.#remove(key + PART);
  }

  /** Removes an incomplete file. */
  async deletePart(key: string): Promise<void> {
    await this.#remove(key + PART + RECORD);
    await this.#remove(key + PART);
  }

  /** Keys of complete and of incomplete files. */
  async keys(): Promise<{ complete: string[]; parts: string[] }> {
    const names: string[] = [];
    const directory = this.#directory as unknown as { keys(): AsyncIterable<string> };
    for await (const name of directory.keys()) names.push(name);
    const ending = (end: string) => names.filter((name) => name.endsWith(end)).map((name) => name.slice(0, -end.length));
    const parts = ending(PART + RECORD);
    return { complete: ending(RECORD).filter((key) => !key.endsWith(PART)), parts };
  }

  async #size(name: string): Promise<number | undefined> {
    try {
      return (await (await this.#directory.getFileHandle(name)).getFile()).size;
    } catch {
      return undefined;
    }
  }

  async #readJson<T>(name: string): Promise<T | undefined> {
    try {
      const file = await (await this.#directory.getFileHandle(name)).getFile();
      return JSON.parse(await file.text()) as T;
    } catch {
      // No record, or one that a closed tab has left unfinished.
      return undefined;
    }
  }

  async #writeJson(name: string, value: object): Promise<void> {
    const handle = (await this.#directory.getFileHandle(name, { create: true })) as FileHandle;
    const file = await handle.createSyncAccessHandle();
    try {
      file.truncate(0);
      file.write(new TextEncoder().encode(JSON.stringify(value)), { at: 0 });
      file.flush();
    } finally {
      file.close();
    }
  }

  async #remove(name: string): Promise<void> {
    try {
      await this.#directory.removeEntry(name);
    } catch (error) {
      if ((error as Error).name !== "NotFoundError") throw error;
    }
  }
}
