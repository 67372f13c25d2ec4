// The model files and expected values of crates/oxidize-wasm/tests/browser.rs, and a server that can misbehave.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { startServer } from "../server.mjs";

/** Files and the answers of a native engine to them. */
export const expected = JSON.parse(readFileSync(process.env.OXIDIZE_WEB_EXPECTED, "utf8"));

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

/**
 * Starts a server of the package and the models. `faults` maps URL paths to functions of the number of the request, from
 * 0, which return how it goes wrong: `cutAfter`, `noRanges`, `noLength`, `etag`, `delay`, `status` or `body`.
 */
export async function startTestServer({ isolated }) {
  const requests = [];
  const faults = {};
  const models = Object.fromEntries(
    Object.entries(expected.files).map(([name, path]) => [`/models/${name}`, path]),
  );
  const server = await startServer({
    isolated,
    roots: { "/package/": here("../package/dist"), "/": here("."), ...models },
    intercept(url, request, response, headers, how) {
      if (!url.pathname.startsWith("/models/")) return false;
      const name = url.pathname + url.search;
      const number = requests.filter((seen) => seen.name === name).length;
      requests.push({ name, range: request.headers.range ?? null });
      Object.assign(how, faults[name]?.(number));
      if (how.status || how.body !== undefined) {
        response.writeHead(how.status ?? 200, { ...headers, "Content-Type": "text/html" });
        response.end(how.body ?? "");
        return true;
      }
      return false;
    },
  });
  return { ...server, requests, faults };
}
