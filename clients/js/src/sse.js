/** @import {EventSourceMessage} from "eventsource-parser" */
/** @import {Watch} from "./wire.js" */
import {createParser} from "eventsource-parser";
import {UnexpectedAnswer} from "./errors.js";

/** An event longer than this is no answer of an agent but an attack on the reader's memory. */
const LONGEST_EVENT = 64 * 1024 * 1024;

/**
 * The messages of an event stream, as they come; then the connection is closed. What a broken connection
 * left unfinished is not a message.
 *
 * @param {Response} response
 * @param {Watch} watch
 * @param {() => void} [onOpen]
 * @returns {AsyncGenerator<EventSourceMessage, void, void>}
 */
export async function* readMessages(response, watch, onOpen) {
  /** @type {EventSourceMessage[]} */
  const messages = [];
  const parser = createParser({
    onEvent: (message) => messages.push(message),
    onError: ({type, message}) => {
      if (type === "max-buffer-size-exceeded") throw new UnexpectedAnswer(message);
    },
    maxBufferSize: LONGEST_EVENT,
  });
  try {
    onOpen?.();
    for await (const text of readText(response, watch)) {
      parser.feed(text);
      for (const message of messages.splice(0)) {
        watch.signal.throwIfAborted();
        yield message;
      }
    }
  } finally {
    watch.end();
  }
}

/**
 * The text of a body as it comes. Only a reader that waits counts the time without a byte.
 *
 * @param {Response} response
 * @param {Watch} watch
 * @returns {AsyncGenerator<string, void, void>}
 */
export async function* readText(response, watch) {
  if (response.body === null) return;
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let text = "";
  for (;;) {
    watch.touch();
    const {done, value} = await watch.over(() => reader.read());
    if (done) {
      // the parser would wait for what follows a CR; to JSON, both are blanks
      if (text.endsWith("\r")) yield "\n";
      return;
    }
    watch.rest();
    watch.hasBegun = true;
    yield text = decoder.decode(value, {stream: true});
  }
}
