// The JavaScript that wasm-bindgen writes for each build, from crates/oxidize-wasm/src/bindings.rs.

declare module "*/oxidize.js" {
  /** Options of the default export. */
  export interface InitOptions {
    module_or_path: WebAssembly.Module | URL | string | Response;
    memory?: WebAssembly.Memory;
    thread_stack_size?: number;
  }
  export interface InitOutput {
    readonly memory: WebAssembly.Memory;
  }
  export default function init(options: InitOptions): Promise<InitOutput>;
  export function start(): void;
  export function takePanic(): string | undefined;
  export function runThread(): void;

  export class Digest {
    constructor();
    free(): void;
    update(bytes: Uint8Array): void;
    sha256(): string;
    fast(): string;
  }

  export class Loader {
    constructor();
    free(): void;
    addFile(name: string, len: number): number;
    addAdapter(name: string, len: number, scale: number): number;
    checksum(): string;
    finish(options: string): Host;
  }

  export class Host {
    free(): void;
    submit(id: number, request: string): void;
    cancel(id: number): void;
    step(): string;
    tokenize(text: string, addSpecial: boolean, parseSpecial: boolean): Uint32Array;
    detokenize(tokens: Uint32Array, renderSpecial: boolean): string;
    applyTemplate(request: string): string;
    embed(texts: string, normalize: boolean): Float32Array[];
    info(): string;
  }
}
