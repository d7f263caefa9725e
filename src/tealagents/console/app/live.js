/**
 * A request while it runs: its events from the first one on, through pauses and lost connections, so that a
 * page that was reloaded, or a second one, shows what the first one shows.
 */
import {useEffect, useRef, useState} from "./html.js";
import {sleep} from "../vendor/client.js";

const NOTHING = {requestId: null, status: null, parts: [], pause: null, problem: null, answer: null, lost: null};

/**
 * What a request has said so far, as parts: `{type: "text", text}` and
 * `{type: "call", id, tool, arguments, result}`.
 */
export function useLive(client, requestId, onEnd) {
  const [live, setLive] = useState(NOTHING);
  const ended = useRef(onEnd);
  ended.current = onEnd;
  useEffect(() => {
    setLive({...NOTHING, requestId});
    if (!requestId) return;
    const leaving = new AbortController();
    const view = new Gathered(requestId, leaving.signal, setLive);
    follow(client, requestId, view, leaving.signal).then(
      (finished) => finished && ended.current?.(),
      (error) => leaving.signal.aborted || (view.put({problem: error, lost: null}), ended.current?.()),
    );
    return () => leaving.abort();
  }, [client, requestId]);
  return live.requestId === requestId ? live : {...NOTHING, requestId};
}

/** Reads events to the end of the request, which refusals to be read do not end; a decision may take days. */
async function follow(client, requestId, view, signal) {
  let after = 0;
  let last = null;
  let attempt = 0;
  do {
    last = null;
    try {
      for await (const event of client.follow(requestId, {after, signal, onReconnect: (lost) => view.put({lost}), onOpen: () => view.put({lost: null})})) {
        if (signal.aborted) return false;
        view.take(event);
        last = event.event;
        after = event.id ?? after;
        attempt = 0;
      }
    } catch (error) {
      if (error.status !== 429 && !(error.status >= 500 && attempt < 5)) throw error;
      view.put({lost: {attempt: (attempt += 1)}});
      await sleep(Math.max(2, error.retryAfter) * 1000, signal);
    }
  } while ((attempt || last === "approval-required") && !signal.aborted);
  return !signal.aborted;
}

/** Takes events as they come and shows them once a frame, however many there are. */
class Gathered {
  #state;
  #frame = 0;

  constructor(requestId, signal, show) {
    this.#state = {...NOTHING, requestId, parts: []};
    this.signal = signal;
    this.show = show;
  }

  take({event, data}) {
    const state = this.#state;
    state.lost = null;
    if (event === "request") Object.assign(state, {status: data.status, pause: null});
    else if (event === "partial-response") this.#text(data.output_partial);
    else if (event === "tool-call") this.#call(data);
    else if (event === "tool-result") this.#result(data);
    else if (event === "approval-required") Object.assign(state, {status: "Paused", pause: data.content});
    else if (event === "final-response") Object.assign(state, {status: data.status, answer: data.content, pause: null});
    else if (event === "error") this.#problem(data);
    this.#soon();
  }

  put(change) {
    Object.assign(this.#state, change);
    this.#soon();
  }

  #problem(problem) {
    const status = problem.code === "request_canceled" ? "Canceled" : "Failed";
    Object.assign(this.#state, {status, problem, pause: null});
  }

  #text(piece) {
    const last = this.#state.parts.at(-1);
    if (last?.type === "text") last.text += piece;
    else this.#state.parts.push({type: "text", text: piece});
  }

  #call({call_id, tool, arguments: given}) {
    if (this.#find(call_id)) return;
    this.#state.parts.push({type: "call", id: call_id, tool, arguments: given, result: null});
  }

  #result({call_id, output, is_error, duration_ms}) {
    const call = this.#find(call_id);
    if (call) call.result = {output, is_error, duration_ms};
  }

  #find(id) {
    return this.#state.parts.find((part) => part.type === "call" && part.id === id);
  }

  /** A hidden page has no frames: then it is shown a little later. */
  #soon() {
    if (this.#frame) return;
    const next = document.hidden ? (show) => setTimeout(show, 100) : requestAnimationFrame;
    this.#frame = next(() => {
      this.#frame = 0;
      if (this.signal.aborted) return;
      this.show({...this.#state, parts: this.#state.parts.map((part) => ({...part}))});
    });
  }
}
