/** Reading from the service: once, again, and page by page. */
import {useCallback, useEffect, useRef, useState} from "./html.js";

/**
 * `read(signal)`'s result, read again whenever `keys` change or `reload()` is called, and every `everyMs` while
 * the page is looked at. What was read stays until there is something newer.
 */
export function useRead(read, keys, everyMs) {
  const [state, setState] = useState({data: null, error: null});
  const run = useRef(null);
  const reload = useCallback(() => run.current?.() ?? Promise.resolve(), []);
  useEffect(() => {
    const leaving = new AbortController();
    let under = null;
    run.current = () => {
      under ??= read(leaving.signal)
        .then((data) => leaving.signal.aborted || setState({data, error: null}))
        .catch((error) => leaving.signal.aborted || setState((known) => ({...known, error})))
        .finally(() => (under = null));
      return under;
    };
    setState({data: null, error: null});
    run.current();
    const looked = () => document.visibilityState === "visible" && run.current?.();
    const timer = everyMs && setInterval(looked, everyMs);
    if (everyMs) document.addEventListener("visibilitychange", looked);
    return () => {
      leaving.abort();
      run.current = null;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", looked);
    };
  }, keys);
  return {...state, reload};
}

/** All items of a list, in pages of 200; `more(items)` is called after each page. */
export async function all(list, signal, more) {
  const items = [];
  let cursor = null;
  do {
    const page = await list.page(cursor);
    signal?.throwIfAborted();
    items.push(...page.items);
    cursor = page.next_cursor;
    if (cursor !== null) more?.(items);
  } while (cursor !== null);
  return items;
}

/** A value that is kept for the whole page and shared by its parts, such as titles that were looked up. */
export class Shared {
  #listeners = new Set();
  values = new Map();

  set(key, value) {
    if (this.values.get(key) === value) return;
    this.values.set(key, value);
    for (const listener of this.#listeners) listener(key);
  }

  /** The value of `key`, and from then on each of its changes. */
  use(key) {
    const [, again] = useState(0);
    useEffect(() => {
      const listener = (changed) => changed === key && again((n) => n + 1);
      this.#listeners.add(listener);
      return () => this.#listeners.delete(listener);
    }, [key]);
    return this.values.get(key);
  }
}
