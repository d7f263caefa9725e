/** The first page: who are you? */
import {html, useState} from "./html.js";
import {Icon, Problem} from "./ui.js";
import {signIn} from "./session.js";
import {readable} from "./text.js";

const NAME = /^[\x21-\x7e]{1,200}$/;

export function SignIn({config, onSignedIn, error}) {
  const Form = {mock: NameForm, entra: EntraForm}[config.sign_in.kind] ?? TokenForm;
  return html`
    <main class="signin">
      <img src="icon.svg" alt="" width="44" height="44" />
      <h1>${readable(config.name)} <small>${readable(config.version)}</small></h1>
      <p class="muted">${readable(config.description)}</p>
      ${error && html`<${Problem} error=${error} />`}
      <${Form} config=${config} onSignedIn=${onSignedIn} />
    </main>
  `;
}

function NameForm({onSignedIn}) {
  const [name, setName] = useState("");
  const wrong = name !== "" && !NAME.test(name);
  return html`
    <form onSubmit=${(event) => (event.preventDefault(), onSignedIn(signIn({kind: "mock", name})))}>
      <label for="name">Your name</label>
      <input id="name" value=${name} onInput=${(event) => setName(event.target.value)} autocomplete="username"
        autofocus spellcheck=${false} aria-describedby="name-help" aria-invalid=${wrong} />
      <p id="name-help" class=${wrong ? "wrong" : "muted"}>
        ${wrong
          ? "Up to 200 letters from A to Z, digits and symbols, without accents or spaces."
          : "This service checks no passwords: you are who you say you are. Everything you create belongs to this name."}
      </p>
      <button class="primary" disabled=${!NAME.test(name)}>Continue</button>
    </form>
  `;
}

function TokenForm({onSignedIn}) {
  const [token, setToken] = useState("");
  return html`
    <form onSubmit=${(event) => (event.preventDefault(), onSignedIn(signIn({kind: "token", token: token.trim()})))}>
      <label for="token">Bearer token</label>
      <input id="token" type="password" value=${token} onInput=${(event) => setToken(event.target.value)}
        autocomplete="off" autofocus aria-describedby="token-help" />
      <p id="token-help" class="muted">An access token for this service. It stays in this tab.</p>
      <button class="primary" disabled=${!/^[\x21-\x7e]+$/.test(token.trim())}>Continue</button>
    </form>
  `;
}

function EntraForm({config}) {
  const [error, setError] = useState(null);
  const [leaving, setLeaving] = useState(false);
  const start = async () => {
    setLeaving(true);
    try {
      const {signInWithEntra} = await import("./entra.js");
      await signInWithEntra(config.sign_in);
    } catch (failure) {
      if (failure.errorCode !== "user_cancelled") setError(failure);
      setLeaving(false);
    }
  };
  return html`
    ${error && html`<${Problem} error=${error} />`}
    <button class="primary" disabled=${leaving} onClick=${start} autofocus>
      <${Icon} name="check" /> ${leaving ? "Going to the sign-in page …" : "Sign in with Microsoft"}
    </button>
  `;
}
