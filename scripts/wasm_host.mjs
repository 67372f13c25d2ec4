// Hosts the engine of oxidize-wasm-test: node scripts/wasm_host.mjs MODULE.wasm MODEL.gguf
// Prints the answers, a line each.

import { readFile } from 'node:fs/promises';

const [program, model] = process.argv.slice(2);
const bytes = (address, length) => new Uint8Array(exports.memory.buffer, address, length);
const host = {
    monotonic: () => performance.now(),
    unix: () => Date.now(),
    random: (address, length) => crypto.getRandomValues(bytes(address, length)),
    print: (address, length) => console.log(new TextDecoder().decode(bytes(address, length))),
};
// Any other import is an error: the core of the engine needs nothing from JavaScript but these.
const module = await WebAssembly.compile(await readFile(program));
const { exports } = await WebAssembly.instantiate(module, { host });

const file = await readFile(model);
const address = exports.allocate(file.length);
bytes(address, file.length).set(file);
const ok = exports.start(address, file.length);
let state = ok ? 1 : -1;
while (state === 1) {
    state = exports.step();
    // The page would go on here.
    await new Promise((resolve) => setTimeout(resolve));
}
process.exitCode = state === 0 && exports.finish() ? 0 : 1;
