import {createParser} from "../eventsource-parser.js";
import {UnexpectedAnswer} from "./errors.js";

const LONGEST_EVENT = 64 * 1024 * 1024;

export async function* readMessages(response, watch) {
const messages = [];
const parser = createParser({
onEvent: (message) => messages.push(message),
onError: ({type, message}) => {
if (type === "max-buffer-size-exceeded") throw new UnexpectedAnswer(message);
},
maxBufferSize: LONGEST_EVENT,
});
const decoder = new TextDecoder();
try {
if (response.body === null) return;
const reader = response.body.getReader();
for (;;) {
const {done, value} = await watch.over(() => reader.read());
if (done) return;
watch.touch();
parser.feed(decoder.decode(value, {stream: true}));
yield* messages.splice(0);
}
} finally {
watch.end();
}
}
