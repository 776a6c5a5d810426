// Asks the gateway with the reader's API key. The key stays in this tab.

const TIMEOUT_MS = 10000;
const KEPT_AS = "antefix-api-key";
const USABLE_KEY = /^[\x21-\x7e]+$/;

let key = sessionStorage.getItem(KEPT_AS);

export const hasKey = () => Boolean(key);

export const hasUsableKey = () => USABLE_KEY.test(key);

export function keepKey(given) {
  key = given.trim();
  sessionStorage.setItem(KEPT_AS, key);
}

export function forgetKey() {
  key = null;
  sessionStorage.removeItem(KEPT_AS);
}

const withKey = ({ headers, ...options }) => ({
  cache: "no-store", credentials: "omit", ...options, headers: { ...headers, authorization: `Bearer ${key}` },
});

// Returns {status, body}; status 0: no gateway answered in JSON.
export async function ask(path) {
  try {
    const answer = await fetch(path, withKey({ signal: AbortSignal.timeout(TIMEOUT_MS) }));
    return { status: answer.status, body: await answer.json() };
  } catch {
    return { status: 0, body: null };
  }
}

// Returns the Response, whose body the caller reads. Rejects as fetch does.
export function post(path, fields, requestId, signal) {
  const headers = { "content-type": "application/json", "x-request-id": requestId };
  return fetch(path, withKey({ method: "POST", headers, body: JSON.stringify(fields), signal }));
}

export const complaint = (answer) => answer.body?.error?.message ?? `it answered ${answer.status}`;
