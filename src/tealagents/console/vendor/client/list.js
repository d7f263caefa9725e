import {UnexpectedAnswer} from "./errors.js";

export class List {
#calls;
#path;
#signal;
#query;

constructor(calls, path, {signal, ...query}) {
this.#calls = calls;
this.#path = path;
this.#signal = signal;
this.#query = query;
}

async page(cursor = this.#query.cursor) {
const call = /** @type {const} */ ({
method: "GET",
path: this.#path,
query: {...this.#query, cursor},
repeatable: true,
});
const document = /** @type {any} */ (await this.#calls.document(call, this.#signal));
if (!Array.isArray(document.items)) throw new UnexpectedAnswer(`the list ${this.#path} has no \`items\``);
return document;
}

async *[Symbol.asyncIterator]() {
let cursor = this.#query.cursor;
do {
const {items, next_cursor} = /** @type {Page<T>} */ (await this.page(cursor));
yield* items;
if (next_cursor && next_cursor === cursor) {
throw new UnexpectedAnswer(`the list ${this.#path} names the same page as its next one`);
}
cursor = next_cursor;
} while (cursor);
}

async toArray() {
const all = [];
for await (const item of this) all.push(item);
return all;
}
}
