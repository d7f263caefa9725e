/** @import {ListOptions, Page} from "./index.js" */
/** @import {Calls} from "./calls.js" */
import {UnexpectedAnswer} from "./errors.js";
import {read} from "./wire.js";

/**
 * @template T
 * @template [Paged=Page<T>]
 */
export class List {
  #calls;
  #path;
  #signal;
  #query;

  /**
   * @param {Calls} calls
   * @param {string} path
   * @param {ListOptions} options
   * @param {string[]} [filters] the names of the options that this list has besides those of all
   */
  constructor(calls, path, {signal, ...query}, filters = []) {
    for (const name in query) {
      // one that is misspelt, such as `sessionId`, would list everything
      if (!["limit", "cursor", ...filters].includes(name)) throw new TypeError(`this list has no option ${name}`);
    }
    this.#calls = calls;
    this.#path = path;
    this.#signal = signal;
    this.#query = query;
  }

  /**
   * @param {string | null} [cursor]
   * @returns {Promise<Paged>}
   */
  async page(cursor = this.#query.cursor) {
    const call = read(this.#path, {...this.#query, cursor});
    const document = /** @type {any} */ (await this.#calls.document(call, this.#signal, []));
    if (!Array.isArray(document.items)) throw new UnexpectedAnswer(`the list ${this.#path} has no \`items\``);
    return document;
  }

  /** @returns {AsyncGenerator<T, void, void>} */
  async *[Symbol.asyncIterator]() {
    /** @type {string | null | undefined} */
    let cursor = this.#query.cursor;
    do {
      const {items, next_cursor} = /** @type {Page<T>} */ (await this.page(cursor));
      for (const item of items) {
        this.#signal?.throwIfAborted();
        yield item;
      }
      if (next_cursor && next_cursor === cursor) {
        throw new UnexpectedAnswer(`the list ${this.#path} names the same page as its next one`);
      }
      cursor = next_cursor;
    } while (cursor);
  }

  async toArray() {
    /** @type {T[]} */
    const all = [];
    for await (const item of this) all.push(item);
    return all;
  }
}
