import { OxidizeError } from "./errors.js";
import type { Platform } from "./platform.js";
import type { Build, LoadOptions } from "./types.js";

/** Builds of the engine that are part of this package. */
const PRESENT: readonly Build[] = ["simd", "threads"];

/** Threads that are used unless the page sets a number: more rarely pay, and phones have slow cores besides. */
const MAX_DEFAULT_THREADS = 8;

// A function each, with one instruction of the proposal: `i8x16.splat`, `i8x16.relaxed_swizzle`, `memory.atomic.notify`.
const SIMD = module([0x60, 0, 1, 0x7b], [0x41, 0, 0xfd, 15, 0x0b]);
const RELAXED = module([0x60, 0, 1, 0x7b], [0x41, 0, 0xfd, 15, 0x41, 0, 0xfd, 15, 0xfd, 0x80, 0x02, 0x0b]);

/** A WebAssembly module with one function. */
function module(type: number[], body: number[]): Uint8Array<ArrayBuffer> {
  const section = (id: number, bytes: number[]) => [id, bytes.length, ...bytes];
  return Uint8Array.from([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, [1, ...type]),
    ...section(3, [1, 0]),
    ...section(10, [1, body.length + 1, 0, ...body]),
  ]);
}

/** The build and the number of threads, with the reasons. */
export interface Choice {
  build: Build;
  threads: number;
  reasons: string[];
}

/** Chooses the build for this browser. */
export function chooseBuild(platform: Platform, options: LoadOptions): Choice {
  if (typeof WebAssembly !== "object" || !WebAssembly.validate(SIMD)) {
    throw new OxidizeError("unsupported-browser", "this browser has no WebAssembly with SIMD");
  }
  if (options.backend === "webgpu") {
    throw new OxidizeError("not-supported", 'the backend "webgpu" is not available yet; use "auto" or "cpu"');
  }
  const wanted = options.threads ?? Math.min(platform.cores(), MAX_DEFAULT_THREADS);
  if (!Number.isInteger(wanted) || wanted < 1 || wanted > 64) {
    throw new OxidizeError("invalid-argument", `threads is ${wanted}; it must be between 1 and 64`);
  }
  const reasons: string[] = [];
  const isRelaxed = PRESENT.includes("relaxed") && WebAssembly.validate(RELAXED);
  let threads = wanted;
  if (wanted === 1) {
    reasons.push(options.threads === 1 ? "one thread: the page asks for it" : "one thread: the machine has one core");
  } else if (!PRESENT.includes("threads")) {
    threads = 1;
    reasons.push("one thread: this package was built without threads");
  } else if (!platform.canShareMemory()) {
    threads = 1;
    reasons.push(
      "one thread: the page is not cross-origin isolated; send the headers Cross-Origin-Opener-Policy: same-origin and " +
        "Cross-Origin-Embedder-Policy: require-corp",
    );
  } else {
    reasons.push(`${threads} threads: the page is cross-origin isolated`);
  }
  let build: Build = threads > 1 ? (isRelaxed ? "threads-relaxed" : "threads") : isRelaxed ? "relaxed" : "simd";
  if (options.build) {
    build = checkedBuild(options.build, platform);
    reasons.push(`build ${build}: the page asks for it`);
    if (!build.startsWith("threads")) threads = 1;
  }
  return { build, threads, reasons };
}

function checkedBuild(build: Build, platform: Platform): Build {
  if (!PRESENT.includes(build)) {
    throw new OxidizeError("invalid-argument", `there is no build ${build}; the builds are ${PRESENT.join(", ")}`);
  }
  if (build.startsWith("threads") && !platform.canShareMemory()) {
    throw new OxidizeError("not-supported", `the build ${build} needs a page that is cross-origin isolated`);
  }
  if (build.endsWith("relaxed") && !WebAssembly.validate(RELAXED)) {
    throw new OxidizeError("unsupported-browser", "this browser has no relaxed SIMD");
  }
  return build;
}
