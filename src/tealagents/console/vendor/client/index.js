/**
 * The client of a tealagents service.
 *
 * `client.js`   what a client can do: each route of the service as a method
 * `stream.js`   the events of a request, through any number of connections
 * `list.js`     lists, page by page
 * `calls.js`    when a call is made again, and what its answer means
 * `retry.js`    how often, and how soon, to try again
 * `wire.js`     one HTTP exchange: token, timeouts, JSON
 * `sse.js`      an answer that is an event stream; the only module with a dependency
 * `errors.js`   what can go wrong
 *
 * Types are in `index.d.ts` and `documents.d.ts`.
 */
export {Client} from "./client.js";
export * from "./errors.js";
