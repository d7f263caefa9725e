/** Where one is in the console: a path behind `#`, so that the service needs to know none of them. */
import {useEffect, useMemo, useState} from "./html.js";

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
