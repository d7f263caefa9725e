// What a page does, without the page: node demos/ag-ui/page.mjs URL
import {HttpAgent, buildResumeArray} from "@ag-ui/client";

const url = process.argv[2];
const open = (options) => new HttpAgent({url, headers: {Authorization: "Bearer ada"}, ...options});
const page = open();
const answer = () => page.messages.at(-1).content;

async function say(content, parameters) {
  page.addMessage({id: crypto.randomUUID(), role: "user", content});
  await page.runAgent(parameters);
}

await say("My name is Ada.");
await say("What is my name?"); // the client sends all messages again; the service keeps each once
console.log(answer());

// a tool that only the page has
const place = {name: "get_place", description: "Where the user is", parameters: {type: "object", properties: {}}};
await say("call get_place {}", {tools: [place]});
const [call] = page.messages.at(-1).toolCalls;
console.log("the page is asked for:", call.function.name);
page.addMessage({id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: "in the library"});
await page.runAgent();
console.log(answer());

// a tool of the service that needs approval
await say('call Files-delete {"path": "notes.txt"}');
const [interrupt] = page.pendingInterrupts;
console.log("waits:", interrupt.reason, page.messages.at(-1).toolCalls[0].function);
const approved = {status: "resolved", payload: {action: "approve"}};
await page.runAgent({resume: buildResumeArray([interrupt], {[interrupt.id]: approved})});
console.log(answer());

// the same conversation on another device
const late = open({threadId: page.threadId});
await late.runAgent();
console.log(late.messages.length, "messages there,", page.messages.length, "here");
