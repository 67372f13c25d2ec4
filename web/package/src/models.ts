import { OxidizeError } from "./errors.js";
import { nameOf, toPortable } from "./sources.js";
import { keyOf, openStore, withLock } from "./store.js";

/** A file that an earlier visit has downloaded. */
export interface CachedModel {
  /** Last part of the URL. */
  name: string;
  url: string;
  /** Bytes that are there. */
  bytes: number;
  /** Bytes of the whole file; null if the server did not say. */
  total: number | null;
  /** False for a download that was interrupted. */
  complete: boolean;
  /** SHA-256 of a complete file. */
  sha256: string | null;
}

/** Storage of this site. */
export interface StorageState {
  /** Bytes that this site uses. */
  usage: number;
  /** Bytes that this site may use. */
  quota: number;
  /** True if the browser does not delete the files on its own when the disk is full. */
  persistent: boolean;
}

/** Models of earlier visits. */
export interface Models {
  /** Files that are there, complete and incomplete ones. */
  list(): Promise<CachedModel[]>;
  /** Deletes the file of a URL. Does nothing if there is none. */
  delete(url: string | URL): Promise<void>;
  /** Deletes all files. */
  clear(): Promise<void>;
  /** Space in use. */
  storage(): Promise<StorageState>;
  /** Asks the browser to keep the files even if the disk is full. True if it does. */
  persist(): Promise<boolean>;
}

/** Models of earlier visits, in the browser's private file system. */
export const models: Models = {
  async list() {
    const store = await openStore();
    if (!store) return [];
    const keys = await store.keys();
    const list: CachedModel[] = [];
    for (const key of keys.complete) {
      const record = await store.record(key);
      if (!record) continue;
      const { url, bytes, sha256 } = record;
      list.push({ name: nameOf(url), url, bytes, total: bytes, complete: true, sha256 });
    }
    for (const key of keys.parts) {
      const part = await store.part(key);
      if (!part) continue;
      const { url, bytes, total } = part;
      list.push({ name: nameOf(url), url, bytes, total, complete: false, sha256: null });
    }
    return list;
  },

  async delete(url) {
    const file = toPortable(url);
    if (file.kind !== "url") throw new OxidizeError("invalid-argument", `${String(url)} is not the URL of a model`);
    const store = await openStore();
    if (!store) return;
    const key = await keyOf(file.url);
    await withLock(key, undefined, () => {}, () => store.delete(key));
  },

  async clear() {
    const store = await openStore();
    if (!store) return;
    const { complete, parts } = await store.keys();
    for (const key of new Set([...complete, ...parts])) {
      await withLock(key, undefined, () => {}, () => store.delete(key));
    }
  },

  async storage() {
    const { usage = 0, quota = 0 } = (await navigator.storage?.estimate?.()) ?? {};
    const persistent = (await navigator.storage?.persisted?.()) ?? false;
    return { usage, quota, persistent };
  },

  async persist() {
    return (await navigator.storage?.persist?.()) ?? false;
  },
};
