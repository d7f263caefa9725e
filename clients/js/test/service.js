/** The real service, in a process of its own that can be killed and started again at the same address. */
import assert from "node:assert/strict";
import {spawn} from "node:child_process";
import {once} from "node:events";
import {mkdtemp, rm} from "node:fs/promises";
import {connect, createServer} from "node:net";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {fileURLToPath} from "node:url";

const CONFIGS = fileURLToPath(new URL("../../../configs/", import.meta.url));
/** `tests/clients/test_js_client.py` names the one of its own environment */
const COMMAND = process.env.TEALAGENTS ?? "tealagents";

/** Asks again at once, so that no test waits for longer than it has to. */
export const QUICK = {attempts: Infinity, firstDelayMs: 10, longestDelayMs: 50};

export class Service {
  /** @type {import("node:child_process").ChildProcess | undefined} */
  #process;

  /**
   * @param {string} folder
   * @param {number} port
   * @param {NodeJS.ProcessEnv} settings
   */
  constructor(folder, port, settings) {
    this.folder = folder;
    this.port = port;
    this.settings = settings;
    this.url = `http://127.0.0.1:${port}/Janitor/0.1`;
  }

  /**
   * A service that answers, with an empty SQLite store.
   *
   * @param {NodeJS.ProcessEnv} settings for its environment
   */
  static async serve(settings = {}) {
    const service = new Service(await mkdtemp(join(tmpdir(), "tealagents-")), await freePort(), settings);
    await service.start();
    return service;
  }

  async start() {
    const args = ["serve", join(CONFIGS, "tools.yaml"), "--offline", "--port", String(this.port)];
    this.#process = spawn(COMMAND, args, {stdio: ["ignore", "ignore", "inherit"], env: this.#environment()});
    while (!(await answers(this.port))) assert.equal(this.#process.exitCode, null, "the service has ended");
  }

  #environment() {
    return {
      ...process.env,
      TA_AUTH: "mock",
      TA_PERSISTENCE: `sqlite:///${join(this.folder, "state.db")}`,
      TA_PLUGIN_CATALOG_FILE: join(CONFIGS, "catalogue.json"),
      TA_LOG_LEVEL: "ERROR",
      ...this.settings,
    };
  }

  /** @param {NodeJS.Signals} signal */
  signal(signal) {
    this.#process?.kill(signal);
  }

  async ended() {
    if (this.#process?.exitCode === null && this.#process.signalCode === null) await once(this.#process, "exit");
  }

  async stop() {
    this.signal("SIGKILL");
    await this.ended();
    await rm(this.folder, {recursive: true});
  }
}

/** @returns {Promise<number>} a port that was free a moment ago */
async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const {port} = /** @type {import("node:net").AddressInfo} */ (server.address());
  await new Promise((closed) => server.close(closed));
  return port;
}

/**
 * @param {number} port
 * @returns {Promise<boolean>}
 */
function answers(port) {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.on("connect", () => resolve(true)).on("error", () => setTimeout(resolve, 20, false));
    socket.on("connect", () => socket.destroy());
  });
}
