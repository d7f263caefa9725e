/** @import {Retry} from "./index.js" */

/** What one call, or one stream, has left of its `Retry`. */
export class Budget {
  #bounds;
  /** failures in a row, without progress between them */
  failures = 0;
  /** an attempt failed that may have been carried out all the same */
  inDoubt = false;

  /** @param {Retry} [retry] */
  constructor({attempts = 10, firstDelayMs = 200, longestDelayMs = 8_000, longestWaitMs = 60_000} = {}) {
    this.#bounds = {attempts, firstDelayMs, longestWaitMs};
    this.longestDelayMs = longestDelayMs;
  }

  /** There was progress: earlier failures no longer count. */
  renew() {
    this.failures = 0;
  }

  /**
   * How long to wait before trying again; null when it is time to give up.
   *
   * Between half and all of a ceiling that doubles, so that clients that failed together do not come back
   * together; on top of what the service asked for.
   *
   * @param {number | null} [retryAfter] seconds
   */
  delayMs(retryAfter) {
    const {attempts, firstDelayMs, longestWaitMs} = this.#bounds;
    const asked = (retryAfter ?? 0) * 1000;
    const ceiling = Math.min(this.longestDelayMs, firstDelayMs * 2 ** this.failures);
    this.failures += 1;
    if (this.failures > attempts || asked > longestWaitMs) return null;
    return asked + ceiling * (0.5 + 0.5 * Math.random());
  }
}

/**
 * Wait. In a browser the end comes early when the network is back.
 *
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(end, Math.min(ms, 2 ** 31 - 1)); // one that takes longer ends at once
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
