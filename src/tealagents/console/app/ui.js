/** The parts that views are made of. */
import {Component, html, useLayoutEffect, useRef} from "./html.js";
import {longTime, shortTime} from "./format.js";
import {readable} from "./text.js";

const ICONS = {
  audit: "M12 3l7 3v5c0 4.6-3 8.3-7 10-4-1.7-7-5.4-7-10V6zM9 11.8l2.2 2.2L15.2 10",
  back: "M14.5 5.5L8 12l6.5 6.5",
  branch: "M7 4v16M7 9c0 6 10 3 10 9M7 4a1 1 0 100 .01M17 18a1 1 0 100 .01",
  chat: "M4 6.5A2.5 2.5 0 016.5 4h11A2.5 2.5 0 0120 6.5v7a2.5 2.5 0 01-2.5 2.5H11l-5 4v-4.3A2.5 2.5 0 014 13.5z",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  edit: "M4 20l1-4L16.5 4.5l3 3L8 19zM14 7l3 3",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 2.5-2.5L20 17M15.5 9.5a1 1 0 100 .01",
  inbox: "M4 13l3-8h10l3 8v6H4zM4 13h5c.4 1.7 1.5 2.5 3 2.5s2.6-.8 3-2.5h5",
  info: "M12 11v6M12 7.5v.01M12 3a9 9 0 100 18 9 9 0 000-18z",
  moon: "M19.5 14.5A8 8 0 119.5 4.5a6.5 6.5 0 0010 10z",
  more: "M6 12v.01M12 12v.01M18 12v.01",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 100 8 4 4 0 000-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  tool: "M14.5 6.5a4 4 0 005 5L11 20a2.1 2.1 0 01-3-3l8.5-8.5M14.5 6.5L17 4a4.5 4.5 0 00-2.5 2.5zM19.5 11.5A4.5 4.5 0 0021 8",
  trace: "M4 6h9M8 12h9M12 18h8",
  warn: "M12 9v4.5M12 17v.01M12 3.5L2.5 20h19z",
};

export const Icon = ({name}) =>
  html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;

export const Status = ({value}) => html`<span class="status" data-status=${value}>${value}</span>`;

export const Time = ({at}) => html`<time datetime=${at} title=${longTime(at)}>${shortTime(at)}</time>`;

export const IconButton = ({name, label, size = "", at, ...how}) =>
  html`<${how.href ? "a" : "button"} ref=${at} type=${how.href ? undefined : "button"} class=${`icon-button ${size}`} aria-label=${label}
    title=${label} ...${how}><${Icon} name=${name} /><//>`;

export const Back = ({label = "Conversations", to = "#/"}) =>
  html`<${IconButton} name="back" size="back" label=${label} href=${to} />`;

export const Empty = ({icon, title, children}) => html`
  <div class="empty">
    <${Icon} name=${icon} />
    <h2>${title}</h2>
    <p>${children}</p>
  </div>
`;

export const More = ({onClick}) => html`<button class="quiet wide" onClick=${onClick}>Show more</button>`;

export const Loading = ({what}) => html`<p class="loading" role="status">Loading ${what} …</p>`;

export const Pending = ({what, error, onRetry, children}) => html`<div class="page">
  ${children}
  ${error ? html`<${Problem} error=${error} onRetry=${onRetry} />` : html`<${Loading} what=${what} />`}
</div>`;

/** An error as a notice, or as part of one. */
export function Words({error}) {
  const {title, detail} = inWords(error);
  return html`<strong>${title}</strong><p>${readable(detail)}</p>`;
}

export function Problem({error, onRetry}) {
  return html`
    <div class="problem" role="alert">
      <${Icon} name="warn" />
      <div>
        <${Words} error=${error} />
        ${onRetry && html`<button onClick=${onRetry}>Try again</button>`}
      </div>
    </div>
  `;
}

/** What cannot be drawn says so in its place, and the rest of the page stays. */
export class Guard extends Component {
  componentDidCatch(error) {
    reportError(error);
    this.setState({error});
  }

  render({children}, {error}) {
    if (!error) return children;
    return html`<${Problem} error=${{code: "shown", title: "This cannot be shown", detail: error.message}} />`;
  }
}

const TITLES = {
  already_decided: "This has already been decided",
  approval_expired: "The time to decide has run out",
  approval_pending: "A decision is needed first",
  not_found: "Not found",
  not_owner: "This belongs to another user",
  request_canceled: "It was canceled",
  task_busy: "The agent is still answering",
  too_large: "Too large",
  too_many: "Too many requests",
  unauthenticated: "You are no longer signed in",
};

const AGAIN = "Try again in a moment.";

/** What to do, where the service says it to those who write clients. */
const DETAILS = {
  already_decided: "Another decision came first, and this one changes nothing.",
  approval_expired: "The request was canceled. If an answer is still wanted, the message must be sent again.",
  approval_pending: "Decide, or stop the answer, and try again.",
  draining: AGAIN,
  interrupted: "The process that was answering stopped before it was done. If an answer is still wanted, the message must be sent again.",
  not_found: "It may have been deleted or expired. Choose a conversation from the list.",
  persistence_unavailable: AGAIN,
  request_timeout: "Send the message again, or ask for less at once.",
  too_many: AGAIN,
  too_large: "It is too large for this service. Shorten it, or use fewer or smaller images.",
};

/** Whether the service cannot be reached, or cannot answer now; a gateway in front of it gives no code. */
export const isAway = (error) => error.name === "ConnectionLost" || error instanceof TypeError || (error.status > 501 && error.code !== "overloaded");

/** An error as a sentence to read and one that says what to do. */
export function inWords(error) {
  const {status, detail} = error;
  const code = error.code ?? {413: "too_large", 429: "too_many"}[status];
  const {words = DETAILS[code]} = error;
  if (error.inDoubt) return {title: "No answer came", detail: "The service may be away, or it may have been done. Check before you try again."};
  if (typeof code === "string") return {title: TITLES[code] ?? error.title ?? "The service refused this", detail: words ?? detail};
  if (isAway(error))
    return {
      title: "The service cannot be reached",
      detail: "Check that the service is running and that you are online. Running requests continue without this page.",
    };
  if (status === 401 || status === 403 || error.name === "UnexpectedAnswer")
    return {title: "A gateway answered in place of the service", detail: "Reload the page; you may have to sign in there."};
  return {title: "Something went wrong", detail: detail ?? error.message ?? String(error)};
}

/** Resolves once an element comes into view; never if it is left before. */
export const inView = (element, signal) =>
  new Promise((resolve) => {
    const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && resolve());
    observer.observe(element);
    signal.addEventListener("abort", () => observer.disconnect());
  });

/** A dialog over the page. It closes with Escape, by its buttons, and with the view that it covers. */
export function Dialog({title, onClose, children}) {
  const dialog = useRef(null);
  useLayoutEffect(() => {
    const close = () => dialog.current?.close();
    dialog.current.showModal();
    addEventListener("hashchange", close, {once: true});
    return close;
  }, []);
  return html`
    <dialog ref=${dialog} aria-label=${title} onClose=${onClose}>
      <h2>${title}</h2>
      ${children}
    </dialog>
  `;
}

export function Menu({label, children}) {
  const menu = useRef(null);
  /** What has the focus is about to be hidden; a dialog gives it back to what had it when it was opened. */
  const shut = () => {
    if (menu.current.contains(document.activeElement)) menu.current.querySelector("summary").focus();
    menu.current.open = false;
  };
  useLayoutEffect(() => {
    const close = (event) => {
      if (event.type === "keydown" ? event.key === "Escape" : !menu.current.contains(event.target)) shut();
    };
    const kinds = ["pointerdown", "focusin", "keydown"];
    for (const kind of kinds) addEventListener(kind, close);
    return () => kinds.forEach((kind) => removeEventListener(kind, close));
  }, []);
  return html`
    <details class="menu" ref=${menu}>
      <summary class="icon-button" aria-label=${label} title=${label}><${Icon} name="more" /></summary>
      <div class="menu-items" onClickCapture=${shut}>${children}</div>
    </details>
  `;
}
