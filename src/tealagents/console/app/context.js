/** What every view needs: where one is, the client, who is signed in, what the service says of itself, and messages. */
import {createContext, html, useContext, useEffect, useMemo, useRef, useState} from "./html.js";
import {Words} from "./ui.js";

export const App = createContext(null);

/**
 * `{client, patient, requests, ended, config, me, roles, notify, drafts}`: `patient` is a client that never gives up;
 * `requests` holds those that are over, by id; `ended` is aborted with the session; `me` is `{oid, tid}` or null, and
 * `roles` what they may do for others, once known.
 */
export const useApp = () => useContext(App);

/** Whether a task is another user's, which an auditor may read and not change. */
export const isForeign = (task, me) => me !== null && (task.owner.oid !== me.oid || task.owner.tid !== me.tid);

let ahead = 0;

/** Takes the time from an answer, whose date is in whole seconds. */
export function setTime(headers) {
  const difference = Date.parse(headers.get("date")) - Date.now();
  ahead = Math.abs(difference) > 2000 ? difference : 0;
}

/** The time in milliseconds since 1970, by the clock of the service. */
export const serviceTime = () => Date.now() + ahead;

/**
 * Wraps what a button does: a second click meanwhile does nothing. A failure is shown as a notice, or, as a dialog lies
 * over those, given to `onFailure`, and null when it is tried again.
 */
export function useAttempt(onFailure) {
  const {notify} = useApp();
  const busy = useRef(false);
  return (action) => async (...given) => {
    if (busy.current) return;
    busy.current = true;
    onFailure?.(null);
    try {
      await action(...given);
    } catch (error) {
      if (onFailure) onFailure(error);
      else notify(html`<${Words} error=${error} />`);
    } finally {
      busy.current = false;
    }
  };
}

/** Shows a task once it is `made`, and says `what`. Who is elsewhere by then stays there: they may be writing. */
export function useShow() {
  const {notify} = useApp();
  return async (made, what) => {
    const from = location.hash;
    const {task_id} = await made.finally(() => dispatchEvent(new Event("tasks-changed"))); // made, perhaps, without an answer
    if (location.hash !== from)
      return notify(html`The new conversation is in the list. <a href=${href("tasks", task_id)}>Open it</a>`);
    if (what) notify(what);
    await navigate("tasks", task_id); // until then a second click would make another
  };
}

/** Forks a task, from where it is or as `options` say, and shows the fork. */
export function useFork(taskId) {
  const {client} = useApp();
  const show = useShow();
  return useAttempt()((options) =>
    show(client.fork(taskId, options), "This is the fork. Changes here do not affect the original."),
  );
}

/** Where one is: a path behind `#`, so that the service needs to know none of them. */
function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return {path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query)};
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const moved = () => setHash(location.hash);
    addEventListener("hashchange", moved);
    moved(); // it may have before anything listened
    return () => removeEventListener("hashchange", moved);
  }, []);
  return useMemo(current, [hash]);
}

/** `href("tasks", id, "trace")` is the link to that view; what is undefined at the end is left out. */
export function href(...parts) {
  return `#/${parts.filter((part) => part !== undefined).map(encodeURIComponent).join("/")}`;
}

const go = (how, to) =>
  new Promise((shown) => {
    if (location.hash === to) return shown(); // without an event
    addEventListener("hashchange", shown, {once: true});
    location[how](to);
  });

/** Goes elsewhere; resolves when that view is shown. */
export const navigate = (...parts) => go("assign", href(...parts));
/** Leaves what is deleted: the way back does not lead there. */
export const leave = () => go("replace", "#/new");
