/**
 * Signing in with Microsoft Entra ID: authorization code with PKCE, in this window. Tokens are kept in the tab's session
 * storage and renewed until the refresh token is refused.
 */
import {SIGNED_OUT} from "./session.js";
import {CacheLookupPolicy, PublicClientApplication} from "../vendor/msal-browser.js";

let opened = null;

function application({authority, tenant_id, client_id}) {
  opened ??= (async () => {
    const made = new PublicClientApplication({
      auth: {
        clientId: client_id,
        authority: `${authority}/${tenant_id}`,
        knownAuthorities: [new URL(authority).host],
        redirectUri: here(),
        postLogoutRedirectUri: here(),
      },
      cache: {cacheLocation: "sessionStorage"},
      system: {allowPlatformBroker: false},
    });
    await made.initialize();
    return made;
  })();
  return opened;
}

const here = () => location.origin + location.pathname;

/** The session that this tab has, or has just come back with. */
export async function restoredFromEntra(settings) {
  const entra = await application(settings);
  const {hash} = location;
  // the library would leave it in the history
  if (/[#&]state=/.test(hash)) history.replaceState(null, "", here());
  const answer = await entra.handleRedirectPromise({hash});
  const account = answer?.account ?? entra.getActiveAccount() ?? entra.getAllAccounts()[0];
  if (!account) return null;
  entra.setActiveAccount(account);
  const token = async ({refused}) => {
    try {
      const {accessToken} = await entra.acquireTokenSilent({
        account,
        scopes: settings.scopes,
        forceRefresh: refused,
        cacheLookupPolicy: CacheLookupPolicy.AccessTokenAndRefreshToken,
      });
      return accessToken;
    } catch (error) {
      if (error.name === "InteractionRequiredAuthError" || error.errorCode === "invalid_grant") throw SIGNED_OUT;
      if (error.name === "ServerError") throw error;
      return null; // no answer: the next attempt may bring one
    }
  };
  return {me: {tid: account.tenantId, oid: account.localAccountId}, label: account.username || account.name, token};
}

export async function signInWithEntra(settings) {
  const entra = await application(settings);
  await entra.loginRedirect({scopes: settings.scopes, prompt: "select_account"});
}

/** Forgets the tokens of this tab only. */
export async function signOutOfEntra(settings) {
  const entra = await application(settings);
  await entra.clearCache({account: entra.getActiveAccount()});
  entra.setActiveAccount(null);
}
