/** Kind of an {@link OxidizeError}. */
export type ErrorCode =
  | "aborted"
  | "busy"
  | "broken-model"
  | "checksum"
  | "context-length"
  | "corrupt-cache"
  | "internal"
  | "invalid-argument"
  | "network"
  | "not-a-model"
  | "not-cached"
  | "not-supported"
  | "out-of-memory"
  | "quota"
  | "unloaded"
  | "unsupported-browser"
  | "unsupported-model";

const ADVICE: Partial<Record<ErrorCode, string>> = {
  busy: "Wait for other answers to end, or raise `parallel`.",
  "broken-model": "Download the file again, from its publisher.",
  checksum: "The file was not kept. Check the SHA-256 and the URL, and load it again.",
  "context-length": "Send fewer or shorter messages, or load the model with a larger `contextSize`.",
  "corrupt-cache": "The damaged file was deleted. Load the model from its URL again.",
  network: "Check the connection. What was downloaded is kept: loading again resumes.",
  "not-a-model": "The source must be a GGUF file. A web page at this address is often a login or an error.",
  "not-cached": "Load the model from its URL once; `Oxidize.models.list()` has the models that are there.",
  "out-of-memory": "Use a smaller model or `contextSize`, and close other tabs.",
  quota: "Delete models with `Oxidize.models.delete`, or load with `cache: false`.",
  unloaded: "Load the model again.",
  "unsupported-browser": "Use a current version of Chrome, Edge, Firefox or Safari.",
  "unsupported-model": "Choose another model; `info()` says what this one can do.",
};

/** An error of this package. `code` is for programs, `message` and `advice` for people. */
export class OxidizeError extends Error {
  override readonly name: string = "OxidizeError";
  /** Kind of the error. */
  readonly code: ErrorCode;
  /** What can be done about it. */
  readonly advice: string;

  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.advice = ADVICE[code] ?? "";
  }
}

/** The error of an aborted operation, named as that of `fetch`. */
export class AbortError extends OxidizeError {
  override readonly name = "AbortError";

  constructor(message = "the operation was aborted") {
    super("aborted", message);
  }
}

/** An error in the form that crosses from the worker to the page. */
export interface PlainError {
  code: ErrorCode;
  message: string;
}

/** The form of any error for `postMessage`. */
export function toPlain(error: unknown): PlainError {
  if (error instanceof OxidizeError) return { code: error.code, message: error.message };
  if (error instanceof Error) {
    if (error.name === "AbortError") return { code: "aborted", message: "the operation was aborted" };
    if (error.name === "QuotaExceededError") return { code: "quota", message: "the storage of this site is full" };
    const code = (error as { code?: unknown }).code;
    return { code: isCode(code) ? code : "internal", message: error.message };
  }
  return { code: "internal", message: String(error) };
}

/** The error of a {@link PlainError}. */
export function fromPlain(error: PlainError): OxidizeError {
  return error.code === "aborted" ? new AbortError(error.message) : new OxidizeError(error.code, error.message);
}

const CODES: ReadonlySet<string> = new Set<ErrorCode>([
  ...(Object.keys(ADVICE) as ErrorCode[]),
  "aborted",
  "internal",
  "invalid-argument",
  "not-supported",
]);

function isCode(code: unknown): code is ErrorCode {
  return typeof code === "string" && CODES.has(code);
}
