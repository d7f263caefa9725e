/** One service for all tests that change nothing about it. */
import {after} from "node:test";
import {Client} from "../src/index.js";
import {QUICK, Service} from "./service.js";

export const service = await Service.serve();
after(() => service.stop());

/** @param {import("../src/index.js").Token} token */
export function agentOf(token, url = service.url) {
  return new Client(url, {token, retry: QUICK});
}

export const ada = agentOf("ada");
