/** How values are written. */

const clock = new Intl.DateTimeFormat(undefined, {hour: "2-digit", minute: "2-digit"});
const seconds = new Intl.DateTimeFormat(undefined, {hour: "2-digit", minute: "2-digit", second: "2-digit"});
const day = new Intl.DateTimeFormat(undefined, {day: "numeric", month: "short"});
const date = new Intl.DateTimeFormat(undefined, {dateStyle: "medium"});
const full = new Intl.DateTimeFormat(undefined, {dateStyle: "medium", timeStyle: "medium"});

/** The time of day, with the date of another day, and the year of another year. */
const shortTimeBy = (format) => (text) => {
  const [at, now] = [new Date(text), new Date()];
  if (at.toDateString() === now.toDateString()) return format.format(at);
  return `${(at.getFullYear() === now.getFullYear() ? day : date).format(at)}, ${format.format(at)}`;
};

export const shortTime = shortTimeBy(clock);
export const timeOfDay = shortTimeBy(seconds);
export const longTime = (text) => full.format(new Date(text));
export const number = new Intl.NumberFormat().format;

/** `0.4 ms`, `12 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h` */
export function duration(ms) {
  if (ms < 10) return `${Number(ms.toFixed(1))} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${Number((ms / 1000).toFixed(ms < 10_000 ? 1 : 0))} s`;
  const units = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const first = units.findIndex(([, size]) => ms >= size);
  const [[unit, size], [smaller, part]] = units.slice(first);
  const rest = Math.floor((ms % size) / part);
  return `${Math.floor(ms / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}

/** Enough of an id to distinguish two on a page. */
export const shortId = (id) => id.slice(-8);

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** The value of JSON text; a number that would be rounded or written differently stays as it is. */
export const exactJson = (text) =>
  JSON.parse(text, (_, value, {source} = {}) =>
    typeof value === "number" && String(value) !== source ? (JSON.rawJSON?.(source) ?? value) : value,
  );

export const isObject = (value) => Object(value) === value && !Array.isArray(value) && !JSON.isRawJSON?.(value);

/** The object that JSON text says, or null. */
export function asObject(text) {
  try {
    const value = exactJson(text);
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

/** JSON text as it is easiest to read; what is no JSON stays as it is. */
export function prettyJson(text) {
  try {
    return JSON.stringify(exactJson(text), null, 2);
  } catch {
    return text;
  }
}
