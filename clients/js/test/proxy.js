/** A proxy that cuts, or holds, connections where a test says. */
import {once} from "node:events";
import {connect, createServer} from "node:net";

/**
 * Decides on a connection: called with all that the service has sent on it so far. A number: so many
 * characters are passed on, and no more; null: everything is.
 *
 * @typedef {(sent: string, connection: number) => number | null} Fault
 */

/**
 * @param {string} url the agent's
 * @param {Fault} fault
 * @param {{hold?: boolean}} [how] hold the connection open in silence, rather than cut it
 */
export async function faultyProxy(url, fault, {hold = false} = {}) {
  const {hostname, port} = new URL(url);
  /** @type {Set<import("node:net").Socket>} */
  const sockets = new Set();
  let connections = 0;
  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname);
    const number = connections++;
    let sent = "";
    let over = false;
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => {}).on("close", () => (client.destroy(), upstream.destroy()));
    }
    client.pipe(upstream);
    upstream.on("data", (chunk) => {
      const passed = sent.length;
      sent += chunk.toString("latin1");
      const end = fault(sent, number);
      if (over) return;
      if (end === null) return client.write(chunk);
      over = true;
      client.write(chunk.subarray(0, Math.max(0, end - passed)), () => hold || client.destroy());
    });
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const own = /** @type {import("node:net").AddressInfo} */ (server.address());
  return {
    url: url.replace(`:${port}/`, `:${own.port}/`),
    connections: () => connections,
    close: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

/**
 * Behind the event with this number; or, `within`, in its middle.
 *
 * @param {number} id
 * @returns {(sent: string) => number | null}
 */
export function afterEvent(id, {within = false} = {}) {
  return (sent) => {
    const at = sent.indexOf(`\nid: ${id}\n`);
    if (at === -1) return null;
    if (within) return at + 12;
    const end = sent.indexOf("\n\n", at + 1);
    return end === -1 ? null : end + 2;
  };
}
