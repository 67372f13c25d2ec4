// A static server for the demo application and the tests: ranges, ETags, and the headers of cross-origin isolation.
//
//   node web/server.mjs [--port 8080] [--host 127.0.0.1] [--no-isolation] PREFIX=PATH...
//
// A PREFIX such as / or /models/ maps to a file or a directory.
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, sep } from "node:path";
import { pathToFileURL } from "node:url";

const TYPES = {
  ".css": "text/css; charset=utf-8",
  ".gguf": "application/octet-stream",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".map": "application/json",
  ".mjs": "text/javascript; charset=utf-8",
  ".png": "image/png",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
  ".webmanifest": "application/manifest+json",
};

/** Headers that let a page share memory with its workers. */
const ISOLATION = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
};

/**
 * Starts a server. `roots` maps prefixes to files and directories, the longest prefix first. `intercept`, for tests, may
 * answer a request itself (it returns true), or change how a file is sent.
 */
export async function startServer({ roots, port = 0, host = "127.0.0.1", isolated = true, intercept }) {
  const prefixes = Object.keys(roots).sort((a, b) => b.length - a.length);
  const server = createServer((request, response) => {
    answer(request, response).catch((error) => {
      if (!response.headersSent) response.writeHead(500);
      response.end();
      if (error.code !== "ERR_STREAM_PREMATURE_CLOSE") console.error(error);
    });
  });

  async function answer(request, response) {
    const url = new URL(request.url, "http://localhost");
    const headers = { "Cache-Control": "no-cache", ...(isolated && ISOLATION) };
    const how = {};
    if (await intercept?.(url, request, response, headers, how)) return;
    if (request.method !== "GET" && request.method !== "HEAD") return end(response, 405, headers);
    let name;
    try {
      name = decodeURIComponent(url.pathname);
    } catch {
      return end(response, 400, headers);
    }
    const prefix = prefixes.find((prefix) => name.startsWith(prefix));
    if (prefix === undefined) return end(response, 404, headers);
    const rest = normalize(name.slice(prefix.length));
    if (rest.startsWith("..") || rest.includes("\0")) return end(response, 404, headers);
    let path = rest === "." ? roots[prefix] : join(roots[prefix], rest);
    let info = await stat(path).catch(() => undefined);
    if (info?.isDirectory()) {
      path = join(path, "index.html");
      info = await stat(path).catch(() => undefined);
    }
    if (!info?.isFile()) return end(response, 404, headers);
    await sendFile(request, response, path, info, headers, how);
  }

  await new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, resolve);
  });
  const address = `http://${host.includes(":") ? `[${host}]` : host}:${server.address().port}`;
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { address, close };
}

function end(response, status, headers) {
  response.writeHead(status, headers);
  response.end();
}

async function sendFile(request, response, path, info, headers, how) {
  const etag = how.etag ?? `"${createHash("sha1").update(`${path}${sep}${info.size}${info.mtimeMs}`).digest("hex")}"`;
  headers["Content-Type"] = TYPES[extname(path)] ?? "application/octet-stream";
  headers.ETag = etag;
  if (!how.noRanges) headers["Accept-Ranges"] = "bytes";
  let [start, last] = [0, info.size - 1];
  let status = 200;
  const range = !how.noRanges && /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  if (range) {
    start = Number(range[1]);
    if (range[2] !== "") last = Math.min(last, Number(range[2]));
    if (start > last) {
      headers["Content-Range"] = `bytes */${info.size}`;
      return end(response, 416, headers);
    }
    status = 206;
    headers["Content-Range"] = `bytes ${start}-${last}/${info.size}`;
  } else if (request.headers["if-none-match"] === etag) {
    return end(response, 304, headers);
  }
  if (!how.noLength) headers["Content-Length"] = last - start + 1;
  response.writeHead(status, headers);
  if (request.method === "HEAD" || info.size === 0) return response.end();
  let left = how.cutAfter ?? Number.POSITIVE_INFINITY;
  for await (let chunk of createReadStream(path, { start, end: last })) {
    if (chunk.length > left) chunk = chunk.subarray(0, left);
    left -= chunk.length;
    if (!response.write(chunk)) await room(response);
    if (response.destroyed) return;
    if (left <= 0) {
      // What is written must arrive first.
      await new Promise((resolve) => setTimeout(resolve, 50));
      return response.destroy();
    }
    if (how.delay) await new Promise((resolve) => setTimeout(resolve, how.delay));
  }
  response.end();
}

/** Waits until a response takes more, or its connection is gone. */
function room(response) {
  return new Promise((resolve) => {
    const done = () => {
      response.off("drain", done);
      response.off("close", done);
      resolve();
    };
    response.on("drain", done);
    response.on("close", done);
  });
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const roots = {};
  const options = { roots, port: 8080 };
  const args = process.argv.slice(2);
  while (args.length > 0) {
    const arg = args.shift();
    if (arg === "--port") options.port = Number(args.shift());
    else if (arg === "--host") options.host = args.shift();
    else if (arg === "--no-isolation") options.isolated = false;
    else if (arg.includes("=")) roots[arg.slice(0, arg.indexOf("="))] = arg.slice(arg.indexOf("=") + 1);
    else {
      console.error("usage: node web/server.mjs [--port 8080] [--host 127.0.0.1] [--no-isolation] PREFIX=PATH...");
      process.exit(2);
    }
  }
  const { address } = await startServer(options);
  console.log(`serving ${address}/`);
}
