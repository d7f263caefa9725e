/** A request while it runs: its events from the first one on, through pauses and lost connections. */
import {useEffect, useRef, useState} from "./html.js";
import {sleep} from "../vendor/client.js";

const NOTHING = {requestId: null, status: null, parts: [], pause: null, problem: null, answer: null, lost: false, over: false};

/** the arguments of the last calls that were seen to run, by the ids of request and call */
export const ran = new Map();
const MOST_RAN = 999;

/**
 * What a request has said so far, as parts.
 *
 * A browser has six connections to a service of HTTP/1.1, for all its tabs, and a stream holds one of them. So there is
 * none while the page is hidden, or while the request is known to wait at the pause `waitsAt` that is shown.
 */
export function useLive(client, requestId, waitsAt, onEnd) {
  const [shown, setShown] = useState(NOTHING);
  const live = shown.requestId === requestId ? shown : {...NOTHING, requestId};
  const ended = useRef(onEnd);
  ended.current = onEnd;
  const gathered = useRef(null);
  useEffect(() => {
    setShown({...NOTHING, requestId});
    const leaving = new AbortController();
    gathered.current = new Gathered(requestId, leaving.signal, setShown);
    return () => leaving.abort();
  }, [client, requestId]);
  const hidden = useHidden();
  const rests = hidden || live.over || (live.pause !== null && live.pause.approval_id === waitsAt);
  useEffect(() => {
    if (!requestId || rests) return;
    const view = gathered.current;
    const resting = new AbortController();
    const end = (how) => {
      if (resting.signal.aborted) return;
      view.put({...how, lost: false, over: true});
      ended.current?.();
    };
    follow(client, requestId, view, resting.signal).then(end, (problem) => end({problem}));
    return () => {
      resting.abort();
      view.put({lost: false});
    };
  }, [client, requestId, rests]);
  return live;
}

function useHidden() {
  const [hidden, setHidden] = useState(document.hidden);
  useEffect(() => {
    const look = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  return hidden;
}

/**
 * Reads events to the end of the request; a decision may take days. An error without a code is not the service's, and
 * passes.
 */
async function follow(client, requestId, view, signal) {
  let last = null;
  let attempt = 0;
  const onReconnect = () => view.put({lost: true});
  const onOpen = () => view.put({lost: false});
  do {
    last = null;
    try {
      for await (const event of client.follow(requestId, {after: view.after, signal, onReconnect, onOpen})) {
        if (signal.aborted) return;
        view.take(event);
        last = event.event;
        attempt = 0;
      }
    } catch (error) {
      const passes = !error.code || error.status === 429 || (error.status >= 500 && attempt < 5);
      if (signal.aborted || !passes) throw error;
      attempt += 1;
      view.put({lost: true});
      await sleep(Math.max(2, error.retryAfter ?? 0) * 1000, signal);
    }
  } while ((attempt || last === "approval-required") && !signal.aborted);
}

/** Takes events as they come and shows them once a frame. */
class Gathered {
  #state;
  #frame = 0;
  /** the last event that was taken */
  after = 0;

  constructor(requestId, signal, show) {
    this.#state = {...NOTHING, requestId, parts: []};
    this.signal = signal;
    this.show = show;
  }

  take({event, id, data}) {
    const state = this.#state;
    this.after = id ?? this.after;
    state.lost = false;
    if (event === "request") Object.assign(state, {status: data.status, pause: null});
    else if (event === "partial-response") this.#text(data.output_partial);
    else if (event === "tool-call") this.#call(data);
    else if (event === "tool-result") this.#result(data);
    else if (event === "approval-required") Object.assign(state, {status: "Paused", pause: data.content});
    else if (event === "final-response") Object.assign(state, {status: data.status, answer: data.content, pause: null});
    else if (event === "error")
      Object.assign(state, {status: data.code === "request_canceled" ? "Canceled" : "Failed", problem: data, pause: null});
    this.#soon();
  }

  put(change) {
    Object.assign(this.#state, change);
    this.#soon();
  }

  #text(piece) {
    const last = this.#state.parts.at(-1);
    if (last?.type === "text") last.content += piece;
    else this.#state.parts.push({type: "text", content: piece});
  }

  #call({call_id: id, tool, arguments: given}) {
    ran.set(`${this.#state.requestId} ${id}`, given);
    if (ran.size > MOST_RAN) ran.delete(ran.keys().next().value);
    const call = this.#find(id);
    if (call) call.arguments = given; // it had to wait, and was changed meanwhile
    else this.#state.parts.push({type: "call", id, tool, arguments: given, result: null});
  }

  #result({call_id, output, is_error, duration_ms}) {
    const call = this.#find(call_id);
    if (call) call.result = {output, is_error, duration_ms};
  }

  #find(id) {
    return this.#state.parts.find((part) => part.id === id);
  }

  #soon() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.signal.aborted) return;
      this.show({...this.#state, parts: this.#state.parts.map((part) => ({...part}))});
    });
  }
}
