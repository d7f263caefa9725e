// A page that is reloaded in the middle of an answer: node demos/javascript/page.mjs URL
import {Client} from "../../clients/js/src/index.js";

const agent = new Client(process.argv[2], {token: "ada"});
const storage = new Map(); // a browser has `sessionStorage`, which outlives a reload

await load(5);
console.log(`\n-- reloaded after event ${storage.get("after")} --`);
await load(Infinity);

/** What the page does when it is loaded: read on where it was, or ask for the first time. */
async function load(pieces) {
  const requestId = storage.get("request");
  const stream = requestId
    ? agent.follow(requestId, {after: storage.get("after")})
    : agent.stream("pieces-12@50ms, please");
  for await (const {event, data} of stream) {
    storage.set("request", stream.requestId).set("after", stream.lastEventId);
    if (event === "partial-response") {
      process.stdout.write(data.output_partial);
      if (--pieces === 0) return; // this page is gone; the request is not
    }
    if (event === "final-response") console.log(`\n-- the end: ${data.content.output} --`);
  }
}
