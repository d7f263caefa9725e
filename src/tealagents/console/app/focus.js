/** Where the focus goes when what had it is taken away, such as a form that was sent. */
export function keepFocus() {
  /** what has the focus, and what it is within, from the inside out */
  let trail = [];
  /** what had it when its part of the page was hidden: on a phone the list, or a conversation */
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
