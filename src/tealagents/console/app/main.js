/** The console: a client of the service's public API, in a page. */
import {html, render, useEffect, useMemo, useRef, useState} from "./html.js";
import {Client} from "../vendor/client.js";
import {App, setTime, useRoute} from "./context.js";
import {Inbox, traces, useRead} from "./data.js";
import {drafts, restored, SIGNED_OUT, SignIn, signOut} from "./session.js";
import {Approvals} from "./approvals.js";
import {Compare, marks} from "./travel.js";
import {ran} from "./live.js";
import {NewConversation} from "./conversation.js";
import {applyTheme, Sidebar, titles} from "./sidebar.js";
import {TaskView} from "./task.js";
import {unfolded} from "./turn.js";
import {Back, Guard, Pending, Problem} from "./ui.js";

function Console({config, session, onSignOut, onLapsed}) {
  const route = useRoute();
  const [notice, setNotice] = useState({}); // the same words again have their own time
  const leaving = useRef(new AbortController());
  const leave = () => {
    leaving.current.abort();
    for (const kept of [ran, marks.values, titles.values, traces, unfolded]) kept.clear();
  };
  useEffect(() => leave, []);
  const app = useMemo(() => {
    const ended = leaving.current.signal;
    // an answer that comes later is not the next user's
    const access = watched(session.token, (reason) => ended.aborted || onLapsed(reason));
    const made = (retry) => new Client(location.origin + config.url, {...access, retry});
    const clients = {client: made(SOON_TOLD), patient: made(NEVER_GIVEN_UP)};
    return {...clients, requests: new Map(), ended, config, me: session.me, notify: (text) => setNotice({text})};
  }, [config, session]);
  const {data: who, error: unknown} = useRead((signal) => app.client.me({signal}), [app.client]);
  const me = app.me ?? who?.user ?? null;
  const written = useRef(null);
  const known = useMemo(() => {
    written.current = drafts(me, written.current);
    return {...app, me: who?.user ?? me, roles: who?.roles, drafts: written.current};
  }, [app, who]);
  useEffect(() => {
    if (!notice.text) return;
    // not while one points at it or has the focus in it
    const timer = setInterval(() => document.querySelector(".notice:is(:hover, :focus-within)") ?? setNotice({}), 6000);
    return () => clearInterval(timer);
  }, [notice]);
  const [place, id] = route.path;
  return html`
    <${App.Provider} value=${known}>
      <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
      <div class="frame" data-place=${place ?? "home"}>
        <${Inbox}>
          <${Sidebar} route=${route} label=${session.label} onSignOut=${onSignOut} />
          <main id="main" tabindex="-1">${(me || unknown) && html`<${Guard} key=${`${place} ${id}`}><${View} route=${route} /><//>`}</main>
        <//>
      </div>
      <div class="notice" role="status" aria-live="polite" data-shown=${!!notice.text} onClick=${() => setNotice({})}><span key=${notice}>${notice.text}</span></div>
    <//>
  `;
}

/** What is read is read again anyway: that the service is away is said at once. */
const SOON_TOLD = {attempts: 2};
/** An answer is waited for as long as one looks at it. */
const NEVER_GIVEN_UP = {attempts: Infinity, longestDelayMs: 2000};

/**
 * How calls are made with `token`. `onLapsed(reason)` is called once the user has to sign in for another: none can be
 * had, or one is refused that cannot be renewed, or has just been. A refusal of another user's things has no error of the
 * token.
 */
function watched(token, onLapsed) {
  const renewable = typeof token !== "string";
  /** a token that is as new as can be, and that no call was accepted with */
  let fresh = renewable ? null : token;
  const renewed = async (how) => {
    try {
      const given = await token(how);
      if (how.refused) fresh = given;
      return given ?? "";
    } catch (error) {
      if (error === SIGNED_OUT) onLapsed(SIGNED_OUT);
      throw error;
    }
  };
  const call = async (url, how) => {
    const sent = how.headers.get("authorization");
    // without a token for now, a call is like one that was lost: the client makes it again; the service's health needs none
    if (renewable && !sent && !url.endsWith("/health")) throw new TypeError("the token could not be renewed");
    const answer = await fetch(url, how);
    const {status, headers, ok} = answer;
    setTime(headers);
    if (ok && sent && renewable) fresh = null;
    const refused = status === 401 && /\berror=/.test(headers.get("www-authenticate") ?? "");
    if (refused && sent === `Bearer ${fresh}`)
      onLapsed({...SIGNED_OUT, ...(await answer.clone().json().catch(() => {}))});
    return answer;
  };
  return {token: renewable ? renewed : token, fetch: call};
}

function View({route}) {
  const [place, id, tab] = route.path;
  const sides = route.path.slice(1);
  if (place === "approvals") return html`<${Approvals} />`;
  if (place === "compare" && sides.length === 4 && sides.every((each) => each === "current" || isId(each)))
    return html`<${Compare} key=${sides.join("/")} sides=${sides} />`;
  if (place === "tasks" && isId(id)) return html`<${TaskView} key=${id} taskId=${id} tab=${tab ?? "conversation"} />`;
  const session = route.query.get("session");
  if ((place === undefined || place === "new") && (session === null || isId(session)))
    return html`<${NewConversation} key=${session} sessionId=${session} />`;
  return html`<${Pending} error=${{code: "not_found"}}><${Back} /><//>`;
}

const isId = (id) => /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(id);

function Root({config, first}) {
  const [session, setSession] = useState(first.session);
  const [error, setError] = useState(first.error);
  const leave = async (reason) => {
    await signOut(config, reason);
    setError(reason);
    setSession(null);
  };
  if (!session) return html`<${SignIn} config=${config} error=${error} onSignedIn=${setSession} />`;
  return html`<${Console} key=${session.label} config=${config} session=${session}
    onSignOut=${() => leave()} onLapsed=${leave} />`;
}

/** Moves the focus when what had it is taken away, such as a form that was sent. */
function keepFocus() {
  /** what has the focus, and what it is within, from the inside out */
  let trail = [];
  /** what had it when it was hidden: on a phone the list, or a conversation */
  let hidden = null;
  document.addEventListener("focusin", (event) => (trail = event.composedPath().slice(0, -2))); // up to the root
  // who points elsewhere has left it
  document.addEventListener("pointerdown", ({target}) => trail[0]?.contains(target) || (trail = []));
  const look = () => {
    const [held] = trail;
    if (!held || isThere(held)) return;
    const around = trail.find((each) => each !== held && each.matches("[tabindex]") && isThere(each));
    const others = [hidden, ...["#main", "[autofocus]", ".sidebar"].map((each) => document.querySelector(each))];
    if (held.isConnected && !held.disabled) hidden = held;
    trail = [];
    (around ?? others.find((each) => each && isThere(each)))?.focus({preventScroll: true});
  };
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributeFilter: ["disabled", "data-place"]});
}

const isThere = (element) => element.checkVisibility() && !element.disabled;

async function start() {
  const place = document.getElementById("app");
  const draw = (view) => {
    place.textContent = ""; // what stands there until then
    render(view, place);
  };
  try {
    applyTheme();
    keepFocus();
    const answer = await fetch("config.json");
    if (!answer.ok) throw new Error(`The service answered with ${answer.status}.`);
    const config = await answer.json();
    const page = `${config.name} ${config.version}`;
    // a view is named as its heading
    const name = () => (document.title = `${document.querySelector("main h2")?.textContent ?? "Console"} – ${page}`);
    new MutationObserver(name).observe(place, {subtree: true, childList: true, characterData: true});
    const first = await restored(config).then((session) => ({session}), (error) => ({error}));
    draw(html`<${Root} config=${config} first=${first} />`);
  } catch (error) {
    draw(html`<main class="signin"><${Problem} error=${error} onRetry=${() => location.reload()} /></main>`);
  }
}

start();
