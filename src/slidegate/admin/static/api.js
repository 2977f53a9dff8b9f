// Calls the admin API below this page and caches responses by ETag. Every failure is thrown as a Problem with a message
// to show.

const PATIENCE_MS = 20000;
// Refusals by the admin API have a code; a 429 without one comes from a rate limit of the application.
const COUNTED =
  "A rate limit of the application counts the requests of this page. Exempt them before other rules: " +
  `Rule("${location.pathname.replace(/[^/]*$/, "")}{rest:path}", exempt=True)`;

class Problem extends Error {
  constructor(status, title, detail, retryAfterS = null) {
    super(detail || title);
    Object.assign(this, { status, title, detail, retryAfterS });
  }
}

const known = new Map();

export async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  const before = method === "GET" ? known.get(path) : undefined;
  if (before) headers["If-None-Match"] = before.etag;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(`api/${path}`, {
      method,
      headers,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    throw new Problem(
      0,
      "No answer",
      error.name === "TimeoutError"
        ? "The worker did not answer within 20 seconds."
        : "The worker cannot be reached. It may be restarting.",
    );
  }
  if (answer.status === 304) return before.found;
  const found = await answer.json().catch(() => null);
  if (answer.ok) {
    if (known.size >= 50) known.clear();
    if (method === "GET" && answer.headers.has("ETag")) known.set(path, { etag: answer.headers.get("ETag"), found });
    return found;
  }
  const wait = Number.parseFloat(answer.headers.get("Retry-After"));
  const limited = answer.status === 429 && found?.code === undefined;
  const title = found?.title ?? `Status ${answer.status}`;
  throw new Problem(
    answer.status,
    title,
    limited ? COUNTED : (found?.detail ?? ""),
    Number.isFinite(wait) ? wait : null,
  );
}

export const get = (path, parameters = {}) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return call("GET", query ? `${path}?${query}` : path);
};
