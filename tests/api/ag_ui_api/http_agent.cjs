// What a page with AG-UI's own client does with an agent: run with the folder of the client, the URL, a file, and
// what the service's approvals last, in milliseconds. The client verifies the order of all events by itself.
const assert = require("node:assert/strict");
const {readFileSync, existsSync} = require("node:fs");

const [folder, url, file, expiry] = process.argv.slice(2);
const {HttpAgent, buildResumeArray} = require(require.resolve("@ag-ui/client", {paths: [folder]}));
const headers = {authorization: "Bearer ada"};
const WEATHER = {name: "get_weather", description: "The weather", parameters: {type: "object", properties: {place: {type: "string"}}}};

let numbers = 0;
const open = (options = {}) => new HttpAgent({url, headers, ...options});
const user = (content) => ({id: `m${++numbers}`, role: "user", content});
const call = (tool, values) => `call ${tool} ${JSON.stringify(values)}`;
const write = (line) => call("Work-write", {file, line});
const lines = () => (existsSync(file) ? readFileSync(file, "utf8").trim().split("\n") : []);
const said = (agent, role = "assistant") => agent.messages.filter((m) => m.role === role).map((m) => m.content ?? "");

// runs an agent, and returns the events it received
async function run(agent, parameters = {}) {
  const seen = [];
  await agent.runAgent(parameters, {onEvent: ({event}) => void seen.push(event)});
  return seen;
}
const say = (agent, content, parameters) => (agent.addMessage(user(content)), run(agent, parameters));
const kinds = (seen) => seen.map((event) => event.type);
const last = (seen) => seen.at(-1);
const resume = (agent, response) =>
  buildResumeArray(agent.pendingInterrupts, Object.fromEntries(agent.pendingInterrupts.map(({id}) => [id, response])));
const approved = {status: "resolved", payload: {action: "approve"}};

// an input that the service refuses; the client prints such errors
async function refused(work, status, code) {
  const print = console.error;
  console.error = () => {};
  await assert.rejects(work, (error) => error.status === status && error.payload.code === code);
  console.error = print;
}

const SCENES = {
  async text_and_tools() {
    const agent = open();
    await say(agent, "My name is Ada.");
    const seen = await say(agent, "What is my name?");
    assert.match(said(agent).at(-1), /Ada/);
    assert.deepEqual(kinds(seen).filter((kind) => kind.startsWith("RUN")), ["RUN_STARTED", "RUN_FINISHED"]);
    assert.equal(seen[0].protocolVersion, "1.0");
    await say(agent, call("Work-note", {file: file + "n", line: "noted"}));
    assert.deepEqual(said(agent, "tool"), ["noted noted"]);
    assert.equal(said(agent, "user").length, 3);
  },

  async interrupt_and_resume() {
    const agent = open();
    await say(agent, write("one"));
    const [interrupt] = agent.pendingInterrupts;
    assert.equal(interrupt.reason, "tool_call");
    assert.equal(interrupt.toolCallId, agent.messages.at(-1).toolCalls[0].id);
    assert.deepEqual(lines(), []);
    const answers = resume(agent, approved);
    const asked = structuredClone(agent.messages);
    const seen = await run(agent, {resume: answers});
    assert.deepEqual(last(seen).outcome, {type: "success"});
    assert.deepEqual(lines(), ["one"]);
    assert.deepEqual(said(agent, "tool"), ["wrote one"]);
    // the answer is lost on its way, and asked for once more
    const again = open({threadId: agent.threadId, initialMessages: asked});
    await run(again, {resume: answers});
    assert.deepEqual(said(again), said(agent));
    assert.deepEqual(lines(), ["one"]);
  },

  async reject_and_cancel() {
    const agent = open();
    await say(agent, write("never"));
    await run(agent, {resume: resume(agent, {status: "resolved", payload: {action: "reject", reason: "not today"}})});
    assert.match(said(agent, "tool")[0], /not today/);
    await say(agent, write("never"));
    await run(agent, {resume: resume(agent, {status: "cancelled"})});
    assert.ok(!lines().includes("never"));
  },

  async refusal_without_resume() {
    const agent = open();
    await say(agent, write("waits"));
    // the client itself refuses a run without answers; a page that was loaded anew knows of none
    await assert.rejects(say(agent, "go on"), /pending interrupt/);
    const fresh = open({threadId: agent.threadId});
    await refused(say(fresh, "go on"), 409, "approval_pending");
    const late = open({threadId: agent.threadId});
    await run(late);
    assert.deepEqual(late.pendingInterrupts, agent.pendingInterrupts);
    await run(late, {resume: resume(late, approved)});
    assert.ok(lines().includes("waits"));
  },

  async expired_interrupt() {
    const agent = open();
    await say(agent, write("late"));
    const answers = resume(agent, approved);
    const known = structuredClone(agent.messages);
    while (Date.now() <= Date.parse(agent.pendingInterrupts[0].expiresAt)) await new Promise((done) => setTimeout(done, 50));
    await assert.rejects(run(agent, {resume: answers}), /expired/); // by the client
    const careless = open({threadId: agent.threadId, initialMessages: known});
    await refused(run(careless, {resume: answers}), 409, "approval_expired");
    await run(agent, {resume: resume(agent, {status: "cancelled"})});
    assert.deepEqual(agent.pendingInterrupts, []);
    await say(agent, "hello");
    assert.ok(said(agent).at(-1));
    assert.ok(!lines().includes("late"));
  },

  async frontend_tools() {
    const agent = open();
    const seen = await say(agent, call("get_weather", {place: "Rome"}), {tools: [WEATHER]});
    const {toolCalls} = agent.messages.at(-1);
    assert.deepEqual(last(seen).outcome, {type: "success", pendingToolCallIds: [toolCalls[0].id]});
    agent.addMessage({id: "t1", role: "tool", toolCallId: toolCalls[0].id, content: "28 degrees"});
    await run(agent, {tools: [WEATHER]});
    assert.match(said(agent).at(-1), /28 degrees/);
  },

  async reloaded_page() {
    const agent = open();
    await say(agent, call("get_weather", {place: "Rome"}), {tools: [WEATHER]});
    const late = open({threadId: agent.threadId});
    await run(late);
    const [{id}] = late.messages.at(-1).toolCalls;
    late.addMessage({id: "t1", role: "tool", toolCallId: id, content: "28 degrees"});
    await run(late);
    assert.deepEqual(late.messages.map(({role}) => role), ["user", "assistant", "tool", "assistant"]);
    assert.equal(late.messages[2].toolCallId, id);
    assert.equal(last(await say(late, "broken")).type, "RUN_ERROR");
    const later = open({threadId: agent.threadId});
    await run(later);
    assert.equal(said(later, "user").at(-1), "broken");
    assert.deepEqual(last(await say(later, "hello")).outcome, {type: "success"});
  },

  async resent_history() {
    const agent = open({initialMessages: [user("My name is Grace."), {id: "a0", role: "assistant", content: "Hello!"}]});
    for (const text of ["one", "two", "What is my name?"]) await say(agent, text);
    assert.match(said(agent).at(-1), /Grace/);
    const late = open({threadId: agent.threadId});
    const seen = await run(late);
    assert.deepEqual(kinds(seen), ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
    assert.deepEqual(said(late, "user"), said(agent, "user"));
    assert.deepEqual(said(late), said(agent));
    await say(late, "from elsewhere");
    await say(agent, "and from here");
    assert.deepEqual(said(agent, "user").slice(-2), ["from elsewhere", "and from here"]);
  },

  async reattach() {
    const agent = open();
    agent.addMessage(user("dripping"));
    const lost = agent.runAgent({runId: "r"}, {
      onTextMessageContentEvent: () => agent.abortRun(),
    });
    await lost;
    // the same run, by its id; and a page that never saw it
    const pages = [open({threadId: agent.threadId, initialMessages: agent.messages}), open({threadId: agent.threadId})];
    await Promise.all([run(pages[0], {runId: "r"}), run(pages[1])]);
    for (const page of pages) {
      assert.deepEqual(said(page), ["drip ".repeat(40).trim()]);
      assert.deepEqual(said(page, "user"), ["dripping"]);
    }
  },

  async strangers() {
    const agent = open();
    await say(agent, "secret");
    const stranger = open({threadId: agent.threadId, headers: {authorization: "Bearer eve"}});
    await refused(say(stranger, "tell me"), 404, "not_found");
    await refused(run(open({threadId: agent.threadId, headers: {}})), 401, "unauthenticated");
  },
};

const chosen = Object.entries(SCENES).filter(([name]) => (name === "expired_interrupt") === (expiry === "short"));
(async () => {
  for (const [name, scene] of chosen) {
    await scene().catch((error) => {
      console.error(`${name}: ${error.stack}`);
      process.exit(1);
    });
    console.log(name);
  }
})();
