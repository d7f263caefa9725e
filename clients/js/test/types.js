/** Checked by the compiler and not run: what the modules export is what the types say. */
import * as client from "../src/client.js";
import * as errors from "../src/errors.js";

/** @type {typeof import("../src/index.js")} */
export const made = {...client, ...errors};
