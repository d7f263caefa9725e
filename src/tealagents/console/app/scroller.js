/** A long list in a box that scrolls. Only a window of it is drawn: thousands of items cost no more than dozens. */
import {html, useEffect, useLayoutEffect, useRef, useState} from "./html.js";
import {plural} from "./format.js";

/** items that are drawn at first, by how many the window slides, and how many it holds */
const FIRST = 6;
const STEP = 2;
const MOST = 24;
/** pixels from the end of what is drawn at which more is */
const NEAR = 900;

const NEWEST = Infinity;

/** The window to draw next, or null where nothing has to change. `end` is `NEWEST` where it follows the list. */
function slid({first, end}, count, nearFirst, nearEnd) {
  const last = Math.min(end, count);
  if (nearFirst && first > 0) {
    const start = Math.max(0, first - STEP);
    return {first: start, end: nearEnd || last - start <= MOST ? end : start + MOST};
  }
  if (nearEnd && last < count) {
    const stop = last + STEP;
    return {first: nearFirst ? first : Math.max(first, stop - MOST), end: stop < count ? stop : NEWEST};
  }
  return nearEnd && !nearFirst && last - first > MOST ? {first: last - MOST, end} : null;
}

/** Whether a drawn item, from `first` on, would go although it has the focus or an open editor. */
function inUse(drawn, first, next) {
  const leaves = (place) => place < next.first || place >= next.end;
  return [...drawn].some(
    (item, at) => leaves(first + at) && (item.contains(document.activeElement) || item.querySelector("textarea")),
  );
}

function seen(box, drawn) {
  const {top} = box.getBoundingClientRect();
  const item = [...drawn].find((each) => each.getBoundingClientRect().bottom > top);
  return item ? {item, top: item.getBoundingClientRect().top} : null;
}

/**
 * `items`, each as `draw(item, place)` makes it and known by `keyOf(item)`, below `start` and above the children. It
 * stays at the end while the end is what one looks at, elsewhere at the item that one looks at. Another `jump` leads
 * to the end. `left` is a ref that keeps where one was, unless that was the end: one comes back there.
 */
export function Scroller({label, what, items, keyOf, draw, start, jump, follow, left, children}) {
  const count = items.length;
  const [back] = useState(() => (left.current?.at < count ? left.current : null));
  const [range, setRange] = useState(() =>
    back ? {first: Math.max(0, back.at - STEP), end: back.at + FIRST * 2} : {first: Math.max(0, count - FIRST), end: NEWEST},
  );
  const box = useRef(null);
  const feed = useRef(null);
  const place = useRef({atEnd: !back, top: 0, height: 0, held: null, moving: false});
  const first = Math.min(range.first, Math.max(0, count - 1));
  const last = Math.min(range.end, count);

  const move = (next, now) => {
    Object.assign(place.current, now, {moving: true});
    setRange(next);
  };
  const look = () => {
    if (box.current === null || place.current.moving) return; // left, or about to be drawn
    const {scrollTop, scrollHeight, clientHeight} = box.current;
    const below = scrollHeight - scrollTop - clientHeight;
    const {atEnd, top} = place.current;
    // who scrolls down comes to the end when near it; who scrolls up leaves it, also where what shrinks brings it back
    const stays = scrollTop >= top - 1 || below < 2;
    const near = scrollTop > top + 1 ? below < 40 : (atEnd && stays) || scrollHeight <= clientHeight;
    Object.assign(place.current, {atEnd: last === count && near, top: scrollTop, height: scrollHeight});
    const drawn = feed.current.children;
    let next = slid({first, end: range.end}, count, scrollTop < NEAR, below < NEAR);
    if (next && inUse(drawn, first, next))
      next = {first: Math.min(first, next.first), end: Math.max(range.end, next.end)};
    if (next && (next.first !== first || next.end !== range.end)) move(next, {held: seen(box.current, drawn)});
  };
  /** Draws the end, unless one has scrolled up meanwhile: the event that says so comes later. */
  const stayAtEnd = () => {
    if (box.current === null) return; // left
    const {scrollTop, scrollHeight, clientHeight} = box.current;
    const {atEnd, top, height, moving} = place.current;
    // one cannot scroll as far where there is less to see, or more room
    const most = Math.min(height, scrollHeight) - clientHeight;
    place.current.atEnd = atEnd && (moving || scrollTop >= Math.min(top, most) - 1);
    if (place.current.atEnd) box.current.scrollTop = scrollHeight;
    Object.assign(place.current, {top: box.current.scrollTop, height: scrollHeight});
  };
  const toFirst = () => {
    move({first: 0, end: count > FIRST ? FIRST : NEWEST}, {atEnd: false, held: null});
    box.current.scrollTop = 0;
  };
  const toNewest = () => move({first: Math.max(0, count - FIRST), end: NEWEST}, {atEnd: true, held: null});
  /** what had the focus may not be drawn any more */
  const keepingFocus = (to) => () => {
    box.current.focus({preventScroll: true});
    to();
  };
  useLayoutEffect(() => {
    if (back) box.current.scrollTop += feed.current.children[back.at - first].getBoundingClientRect().top - back.top;
    return () => {
      const at = place.current.atEnd ? null : seen(box.current, feed.current.children);
      left.current = at && {at: Number(at.item.getAttribute("aria-posinset")) - 1, top: at.top};
    };
  }, []);
  useLayoutEffect(() => {
    const {held} = place.current;
    if (held?.item.isConnected && !place.current.atEnd) box.current.scrollTop += held.item.getBoundingClientRect().top - held.top;
    stayAtEnd();
    Object.assign(place.current, {held: null, moving: false});
    const again = requestAnimationFrame(look);
    return () => cancelAnimationFrame(again);
  }, [range, items, follow, children]);
  useEffect(() => void (jump && toNewest()), [jump]);
  // an image may be loaded later; a long message below, or a keyboard, leaves less room
  useEffect(() => {
    const resized = new ResizeObserver(stayAtEnd);
    resized.observe(feed.current);
    resized.observe(box.current);
    return () => resized.disconnect();
  }, []);
  /** who unfolds something goes on looking at it */
  const clicked = (event) => event.target.closest("summary") && (place.current.atEnd = false);

  const pressed = (event) => {
    const to = {Home: toFirst, End: toNewest}[event.key];
    if (!to || event.target.closest("textarea, input, select")) return;
    event.preventDefault();
    keepingFocus(to)();
  };
  const later = count - last;
  return html`
    <div class="scroller" ref=${box} onScroll=${look} onClick=${clicked} onKeyDown=${pressed} tabindex="0" role="region" aria-label=${label}>
      <div class="column">
        ${first > 0 ? html`<${Beyond} count=${first} what=${`earlier ${what}`} onGo=${keepingFocus(toFirst)} />` : start}
        <div class="feed" role=${count > 0 ? "feed" : null} aria-label=${count > 0 ? label : null} ref=${feed}>
          ${items.slice(first, last).map((item, at) => html`
            <div role="article" key=${keyOf(item)} aria-posinset=${first + at + 1} aria-setsize=${count}>
              ${draw(item, first + at)}
            </div>
          `)}
        </div>
        ${later > 0 && html`<${Beyond} count=${later} what=${`later ${what}`} onGo=${keepingFocus(toNewest)} />`}
        <div class="tail" hidden=${later > 0}>${children}</div>
      </div>
    </div>
  `;
}

const Beyond = ({count, what, onGo}) =>
  html`<button class="quiet beyond" onClick=${onGo}>${plural(count, what)}</button>`;
