/**
 * Where the keyboard goes when what had it is taken away: a button that was replaced by what came of it, a form
 * that was sent, a whole page. Browsers forget the place, and one would begin at the top again.
 */
export function keepFocus() {
  /** what has the focus, and what it is within, from the inside out */
  let trail = [];
  document.addEventListener("focusin", ({target}) => (trail = within(target)));
  // who points elsewhere has left it
  document.addEventListener("pointerdown", () => (trail = []));
  const look = () => {
    const [held] = trail;
    if (!held || (held.isConnected && !held.disabled)) return;
    const next = trail.find((each) => each !== held && each.isConnected && each.matches("[tabindex]"));
    trail = [];
    (next ?? document.querySelector("#main, [autofocus]"))?.focus({preventScroll: true});
  };
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributeFilter: ["disabled"]});
}

function within(element) {
  const trail = [];
  for (let each = element; each; each = each.parentElement) trail.push(each);
  return trail;
}
