/** A conversation: its messages, the answer as it comes, and what to say next. */
import {Component, html, useEffect, useLayoutEffect, useMemo, useRef, useState} from "./html.js";
import {href, useApp, useAttempt, useShow} from "./context.js";
import {turnsOf, useMessages} from "./data.js";
import {Composer} from "./composer.js";
import {Pause} from "./approvals.js";
import {asObject} from "./format.js";
import {useLive} from "./live.js";
import {Scroller} from "./scroller.js";
import {titleFrom} from "./sidebar.js";
import {readable} from "./text.js";
import {Ended, Extra, Parts, Turn, UserMessage} from "./turn.js";
import {Back, Guard, Icon, IconButton, Pending, Words} from "./ui.js";

export function NewConversation({sessionId}) {
  const {client, config} = useApp();
  const attempt = useAttempt();
  const show = useShow();
  const [key] = useState(Math.random);
  const send = (items, idempotencyKey) => {
    const metadata = {title: titleFrom(items)};
    return show(client.background(items, {idempotencyKey, session_id: sessionId ?? undefined, metadata}));
  };
  return html`
    <div class="welcome">
      <${Back} />
      <img src="icon.svg" alt="" width="52" height="52" />
      <h2>${readable(config.name)}</h2>
      <p class="muted">${readable(config.description)}</p>
      ${sessionId && html`<p class="muted">This conversation will be part of the session ${sessionId}.</p>`}
      <div class="welcome-composer"><${Composer} draft=${`new ${sessionId}`} onSend=${send} placeholder="Say something to begin" autofocus /></div>
      ${config.examples.length > 0 &&
      html`<ul class="examples" aria-label="Examples">
        ${config.examples.map((text, place) => html`<li key=${text}>
          <button onClick=${attempt(() => send([{content_type: "text", content: text}], `${key} ${place}`))}>${readable(text)}</button>
        </li>`)}
      </ul>`}
    </div>
  `;
}

export function Conversation({task, foreign, reload, left}) {
  const {client, patient, drafts, notify} = useApp();
  /** the key of the message that is said to end the pause if it is sent again */
  const warned = useRef(null);
  const {items, request_id, error, reload: reloadMessages} = useMessages(client, task);
  /** sent here, and not ended */
  const [sent, setSent] = useState([]);
  /** those that waited and are no longer followed */
  const [canceled] = useState(() => new Set());
  const turns = useMemo(() => turnsOf(items ?? []), [items]);
  // what was sent before another that has begun is over
  const begun = sent.findLastIndex(({request_id: id}) => id === task.request_id || turns.some((turn) => turn.requestId === id));
  // the last one stays until the messages are read again
  const running = task.request_id ?? request_id ?? sent.slice(Math.max(0, begun)).find((each) => !canceled.has(each.request_id))?.request_id;
  const refresh = async () => {
    await Promise.all([reload(), reloadMessages()]);
    setSent((known) => known.slice(known.findIndex((each) => each.request_id === running) + 1));
  };
  /** the pause that was decided here; the task still seems to wait there for a moment */
  const [decided, setDecided] = useState(null);
  const live = useLive(patient, running, task.approval_id === decided ? null : task.approval_id, refresh);
  useEffect(() => void (live.status && reload()), [live.status]);

  const send = async (content, idempotencyKey) => {
    // the message stays what it was if its answer is lost, whatever the task does
    const draft = `over ${task.task_id}`;
    const supersede = [warned.current, drafts.get(draft)].includes(idempotencyKey);
    if (supersede) drafts.set(draft, idempotencyKey);
    const taken = await client.background(content, {idempotencyKey, task_id: task.task_id, supersede}).catch((error) => {
      if (error.code === "task_busy") drafts.set(draft, (warned.current = null)); // what pauses later is warned of anew
      if (error.code !== "approval_pending") throw error;
      warned.current = idempotencyKey;
      throw {...error, words: "Decide above, or send the message again to cancel the waiting request."};
    });
    drafts.set(draft);
    setSent((known) => [...known, {request_id: taken.request_id, items: content}]);
    reload();
  };
  const cancel = (requestId) =>
    client.cancel(requestId).catch((error) => notify(html`<${Words} error=${error} />`)).finally(reload);
  const textOf = (requestId) => sent.find((each) => each.request_id === requestId);
  const past = useMemo(() => turns.filter((turn) => turn.requestId !== running), [turns, running]);
  const {user, parts: said} = turns.find((turn) => turn.requestId === running) ?? {user: [], parts: []};
  const shownUser = user.length === 0 && textOf(running) ? [{message_id: "sent", ...textOf(running)}] : user;

  const draw = (turn, place) =>
    html`<${PastTurn} turn=${turn} task=${task} foreign=${foreign} earlier=${past} place=${place} />`;
  if (!items) return html`<${Pending} what="the messages" error=${error} onRetry=${reloadMessages} />`;
  return html`
    <${Scroller} label="Messages" what="request" items=${past} keyOf=${(turn) => turn.requestId} draw=${draw}
      start=${task.origin && html`<${Origin} task=${task} />`} jump=${sent.at(-1)?.request_id} follow=${live.parts} left=${left}>
      ${running && html`<${Running} live=${live} said=${said} user=${shownUser} foreign=${foreign} onTaken=${setDecided} reload=${refresh} />`}
      ${task.queued.map((requestId) => html`<${Waiting} key=${requestId} message=${textOf(requestId)} onCancel=${foreign ? undefined : () => (canceled.add(requestId), cancel(requestId))} />`)}
      ${past.length === 0 && !running && html`<p class="muted">There are no messages on this path.</p>`}
    <//>
    ${!foreign &&
    html`<div class="dock">
      <${Composer} key=${task.task_id} draft=${task.task_id} onSend=${send} onStop=${running ? () => cancel(running) : undefined} placeholder=${placeholder(task, running)} />
    </div>`}
  `;
}

/** The text is known where it was sent. */
function Waiting({message, onCancel}) {
  return html`<section class="turn">
    ${message && html`<${UserMessage} message=${message} />`}
    <div class="row muted">
      <span role="status">${message ? "Waiting for its turn." : "One message is waiting for its turn."}</span>
      ${onCancel && html`<button class="quiet" aria-label="Cancel this message" onClick=${onCancel}>Cancel</button>`}
    </div>
  </section>`;
}

function placeholder(task, running) {
  if (task.status === "Paused") return "Waiting for a decision";
  return running ? "The agent is answering" : "Reply";
}

/** `parts`, and the texts `stored` before calls: no event names a call that waits, or a text that was not streamed. */
const withSaid = (parts, stored) => {
  const places = new Map(stored.map(({id}, at) => [id, at]));
  return stored.reduce((all, said, at) => {
    if (said.type !== "text" || stored[at + 1]?.type !== "call") return all;
    const found = all.findIndex(({id}) => id && places.get(id) > at);
    const place = found < 0 ? all.length : found;
    return all[place - 1]?.type === "text" ? all : all.toSpliced(place, 0, said);
  }, parts);
};

function Running({live, said, user, foreign, onTaken, reload}) {
  const {lost, pause, problem, status, parts} = live;
  const waiting = parts.length === 0 && !pause && !problem && !live.answer;
  return html`
    <section class="turn" data-live=${foreign ? "read" : "own"}>
      ${user.map((message) => html`<${Guard} key=${message.message_id}><${UserMessage} message=${message} /><//>`)}
      <div class="answer">
        <${Guard}><${Parts} of=${live.requestId} parts=${withSaid(parts, said)} growing /><//>
        ${waiting && html`<p class="thinking" role="status">${status === "Queued" ? "Waiting for its turn" : "Thinking"}</p>`}
        ${pause && html`<${Pause} pause=${pause} foreign=${foreign} onTaken=${onTaken} onDecided=${reload} key=${pause.approval_id} />`}
        <${Extra} content=${live.answer} />
        ${problem && html`<${Ended} status=${status ?? "Failed"} problem=${problem} />`}
        ${lost &&
        html`<div class="ended" role="status">
          <${Icon} name="warn" />
          <div>
            <strong>The connection was lost</strong>
            <p>Reconnecting … The answer is shown once the connection is back.</p>
          </div>
        </div>`}
        <div class="visually-hidden" role="status">${live.answer ? "The answer is complete." : pause ? "A decision is needed." : ""}</div>
      </div>
    </section>
  `;
}

/** A turn that has ended is not made again while nothing in it has changed. */
class PastTurn extends Component {
  shouldComponentUpdate({turn, foreign}) {
    const known = this.props;
    return (
      turn.last.message_id !== known.turn.last.message_id ||
      turn.parts.length !== known.turn.parts.length ||
      foreign !== known.foreign
    );
  }

  render({turn, task, foreign, earlier, place}) {
    const before = () => earlier.slice(0, place).findLast((each) => each.answered);
    const actions = (message) => html`<${Edit} message=${message} task=${task} before=${before()} />`;
    return html`<${Turn} turn=${turn} task=${task} actions=${foreign ? undefined : actions} />`;
  }
}

function Origin({task}) {
  const from = task.origin.task_id;
  if (!from) return html`<p class="origin">This conversation was imported.</p>`;
  return html`<p class="origin">
    <${Icon} name="branch" /> A fork of <a href=${href("tasks", from)}>an earlier conversation</a>.${" "}
    ${task.checkpoint_id && html`<a href=${href("compare", from, "current", task.task_id, "current")}>Compare the two</a>`}
  </p>`;
}

/** Changes what was said, in another conversation. */
function Edit({message, task, before}) {
  const {client, drafts} = useApp();
  const show = useShow();
  const draft = `edit:${message.message_id}`;
  const [editing, setEditing] = useState(() => Boolean(drafts.get(draft)));
  const opened = useRef(false);
  const button = useRef(null);
  const edited = useRef(false);
  useLayoutEffect(() => {
    if (edited.current) button.current?.focus();
    edited.current = editing;
  }, [editing]);
  const text = message.items.filter((item) => item.content_type === "text").map((item) => item.content).join("\n");
  const images = message.items.filter((item) => item.content_type === "image");
  const kept = `fork ${draft}`;
  /** Into a fork, or, where nothing was before it, a new task of the session. */
  const resend = async (items, idempotencyKey) => {
    const content = [...items, ...images];
    const metadata = {title: titleFrom(items)};
    if (!before) return client.background(content, {idempotencyKey, session_id: task.session_id, metadata});
    // a fork is used again until it may hold a message; then, by that same message only
    let fork = asObject(drafts.get(kept));
    if (!fork || (fork.idempotencyKey ?? idempotencyKey) !== idempotencyKey) {
      const {task_id} = await client.fork(task.task_id, {checkpoint_id: before.requestId});
      fork = {task_id};
    }
    drafts.set(kept, JSON.stringify({...fork, idempotencyKey}));
    const taken = await client.background(content, {...fork, idempotencyKey}).catch((error) => {
      if (error.status < 500) drafts.set(kept, JSON.stringify(fork));
      throw error;
    });
    drafts.set(kept);
    await client.patchTask(fork.task_id, {metadata}).catch(() => {}); // without, it is called as the original
    return taken;
  };
  const cancel = () => {
    const fork = asObject(drafts.get(kept));
    if (fork && !fork.idempotencyKey)
      client.deleteTask(fork.task_id).then(() => dispatchEvent(new Event("tasks-changed")), () => {});
    for (const name of [draft, `key ${draft}`, kept]) drafts.set(name);
    setEditing(false);
  };
  const where = before ? "a fork" : "a new conversation of this session";
  const send = (...given) =>
    show(resend(...given), `The changed message was sent in ${where}. The original conversation is unchanged.`);
  if (!editing)
    return html`<${IconButton} at=${button} name="edit" size="small" label="Edit and send again" onClick=${() => ((opened.current = true), setEditing(true))} />`;
  return html`
    <div class="editing">
      <${Composer} draft=${draft} onSend=${send} initial=${text} others=${images.length} placeholder="The message" autofocus=${opened.current} />
      <button class="quiet" onClick=${cancel}>Cancel</button>
    </div>
  `;
}
