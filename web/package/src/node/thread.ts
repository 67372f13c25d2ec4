// A worker that computes, in Node.
import { parentPort } from "node:worker_threads";
import { computeOn } from "../compute.js";
import { portOf } from "./port.js";

if (!parentPort) throw new Error("this module is a worker");
computeOn(portOf(parentPort));
