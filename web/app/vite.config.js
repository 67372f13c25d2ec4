import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const packageEntry = fileURLToPath(new URL("../package/dist/index.js", import.meta.url));

/** Writes the list of files into the service worker, which keeps them for visits without a network. */
function precache() {
  return {
    name: "precache",
    enforce: "post",
    generateBundle(_, bundle) {
      const worker = Object.values(bundle).find(({ fileName }) => fileName === "service-worker.js");
      const files = Object.keys(bundle).filter((name) => name !== "service-worker.js" && !name.endsWith(".map"));
      const list = ["./", "icon.svg", "manifest.webmanifest", "models.json", ...files.filter((name) => name !== "index.html")];
      worker.code = worker.code.replace("__FILES__", JSON.stringify(list));
    },
  };
}

export default defineConfig({
  base: "./",
  resolve: { alias: { oxidize: packageEntry } },
  worker: { format: "es" },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    rollupOptions: {
      input: { index: "index.html", "service-worker": "src/service-worker.ts" },
      output: {
        entryFileNames: ({ name }) => (name === "service-worker" ? "service-worker.js" : "assets/[name]-[hash].js"),
      },
    },
  },
  plugins: [precache()],
});
