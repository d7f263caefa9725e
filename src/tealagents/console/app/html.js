/** The rendering library, bound once: `html` makes elements, the hooks keep state. */
import {Component, createContext, h, render} from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export * from "../vendor/preact-hooks.js";
export {Component, createContext, render};
export const html = htm.bind(h);
