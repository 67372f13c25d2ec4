// A worker that computes for the worker that owns the model.
import { computeOn } from "./compute.js";

computeOn(globalThis as unknown as Parameters<typeof computeOn>[0]);
