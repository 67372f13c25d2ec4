import { OxidizeError } from "./errors.js";
import { currentPlatform } from "./platform.js";
import type { PortableFile } from "./protocol.js";
import type { FileSource, RemoteFile } from "./types.js";

/** A source of a file in the form that crosses to the worker. */
export function toPortable(source: FileSource): PortableFile {
  if (typeof source === "string" || source instanceof URL) return remote({ url: source });
  if (source instanceof Blob) {
    const name = (source as File).name || "file";
    if (!currentPlatform().clonesBlobs) return { kind: "stream", stream: source.stream(), name };
    return { kind: "blob", blob: source, name };
  }
  if (source instanceof ReadableStream) return { kind: "stream", stream: source, name: "stream" };
  if (source instanceof ArrayBuffer) return { kind: "bytes", bytes: new Uint8Array(source), name: "bytes" };
  if (source instanceof Uint8Array) return { kind: "bytes", bytes: source, name: "bytes" };
  if (typeof source === "object" && source !== null && "url" in source) return remote(source);
  throw new OxidizeError(
    "invalid-argument",
    "a model comes from a URL, a File, an ArrayBuffer, a ReadableStream or { cached: url }",
  );
}

function remote({ url, sha256, headers }: RemoteFile): PortableFile {
  let address: { url: string } | { path: string };
  try {
    address = currentPlatform().resolve(String(url));
  } catch {
    throw new OxidizeError("invalid-argument", `${JSON.stringify(String(url))} is not a URL`);
  }
  if (sha256 !== undefined && !/^[0-9a-f]{64}$/i.test(sha256)) {
    throw new OxidizeError("invalid-argument", `sha256 is ${JSON.stringify(sha256)}; it has 64 hexadecimal digits`);
  }
  if ("path" in address) return { kind: "path", path: address.path, name: nameOf(address.path) };
  const scheme = new URL(address.url).protocol;
  if (!["http:", "https:", "blob:", "data:"].includes(scheme)) {
    throw new OxidizeError("invalid-argument", `URLs of models begin with https: or http:, not ${scheme}`);
  }
  return { kind: "url", url: address.url, sha256: sha256?.toLowerCase(), headers };
}

/** Last part of a path or URL. */
export function nameOf(address: string): string {
  const path = address.split(/[?#]/)[0] ?? "";
  return path.split(/[/\\]/).filter(Boolean).pop() ?? "file";
}
