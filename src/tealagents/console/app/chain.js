/** The audit's chain of hashes, recomputed here. */

const GENESIS = "0".repeat(64);

/** JSON with sorted keys and without spaces, as it was hashed. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const keys = Object.keys(value).sort(byCodePoint);
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

function byCodePoint(one, other) {
  const [left, right] = [[...one], [...other]];
  const place = left.findIndex((character, at) => character !== right[at]);
  if (place < 0) return left.length - right.length;
  return right[place] === undefined ? 1 : left[place].codePointAt(0) - right[place].codePointAt(0);
}

async function sha256(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * `{state, entry, reason}`: `verified`; `broken` with the first bad entry and what is wrong with it; or `keyed`:
 * the links hold and no hash is a plain SHA-256, as it is with an audit key, which only the operator has; or
 * `unchecked`: the links hold, and the browser computes no hashes for this page.
 */
export async function verify(entries) {
  const linked = brokenLink(entries);
  if (!linked && !crypto.subtle) return {state: "unchecked"};
  const sums = crypto.subtle ? entries : [];
  const matches = await Promise.all(sums.map(async ({hash, ...fields}) => (await sha256(canonical(fields))) === hash));
  const wrong = matches.indexOf(false);
  if (!linked && entries.length > 0 && matches.every((match) => !match)) return {state: "keyed"};
  if (!linked && wrong < 0) return {state: "verified"};
  if (linked && (wrong < 0 || linked.place <= wrong)) return {state: "broken", entry: entries[linked.place], reason: linked.reason};
  return {state: "broken", entry: entries[wrong], reason: "does not match its hash: something in it was changed"};
}

/** The first entry that does not follow the one before it. */
function brokenLink(entries) {
  const place = entries.findIndex(
    (entry, at) => entry.seq !== at + 1 || entry.prev_hash !== (at === 0 ? GENESIS : entries[at - 1].hash),
  );
  if (place < 0) return null;
  const {seq} = entries[place];
  if (seq !== place + 1) return {place, reason: `has the number ${seq} where ${place + 1} is due: one was dropped or moved`};
  return {place, reason: "does not continue the entry before it"};
}
