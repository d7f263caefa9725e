export class Budget {
#bounds;
failures = 0;

constructor(retry) {
this.#bounds = {attempts: 10, firstDelayMs: 200, longestDelayMs: 8_000, longestWaitMs: 60_000, ...retry};
}

get longestDelayMs() {
return this.#bounds.longestDelayMs;
}

renew() {
this.failures = 0;
}

delayMs(retryAfter = null) {
const {attempts, firstDelayMs, longestDelayMs, longestWaitMs} = this.#bounds;
const asked = (retryAfter ?? 0) * 1000;
const ceiling = Math.min(longestDelayMs, firstDelayMs * 2 ** this.failures);
this.failures += 1;
if (this.failures > attempts || asked > longestWaitMs) return null;
return asked + ceiling * (0.5 + 0.5 * Math.random());
}
}

export function sleep(ms, signal) {
return new Promise((resolve, reject) => {
signal?.throwIfAborted();
const timer = setTimeout(end, ms);
globalThis.addEventListener?.("online", end);
signal?.addEventListener("abort", end);

function end() {
clearTimeout(timer);
globalThis.removeEventListener?.("online", end);
signal?.removeEventListener("abort", end);
if (signal?.aborted) reject(signal.reason);
else resolve();
}
});
}
