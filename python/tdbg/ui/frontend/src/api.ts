/** Questions to the server: the token goes in a header, addresses are relative. */

export type Params = Record<string, string | number | string[] | undefined | null>;

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export type Numbers = Float32Array | Float64Array | Uint32Array | Int32Array | Uint8Array;

export interface Packed {
  // biome-ignore lint/suspicious/noExplicitAny: each question knows what is in its answer
  header: Record<string, any>;
  arrays: Record<string, Numbers>;
  shapes: Record<string, number[]>;
}

const KEY = "tdbg-token";
/** By it the server knows this tab: of each it makes one heavy read at a time. */
export const TAB = crypto.randomUUID?.() ?? String(Math.random());
let token = "";

/** Take the token out of the address, where it would be shown and copied along. */
export function takeToken(): boolean {
  const found = new URLSearchParams(location.hash.slice(1)).get("t");
  if (found) {
    useToken(found);
    history.replaceState(history.state, "", location.pathname + location.search);
  } else {
    token = sessionStorage.getItem(KEY) ?? "";
  }
  return token !== "";
}

export function useToken(given: string): void {
  token = given;
  sessionStorage.setItem(KEY, given);
}

function address(path: string, params: Params): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === undefined || value === null) continue;
    for (const each of Array.isArray(value) ? value : [value]) query.append(name, String(each));
  }
  const text = query.toString();
  return `api/${path}${text ? `?${text}` : ""}`;
}

export async function ask(
  path: string,
  params: Params = {},
  more: RequestInit = {},
): Promise<Response> {
  const headers: Record<string, string> = { "X-Tdbg-Token": token, "X-Tdbg-Tab": TAB };
  if (more.body) headers["Content-Type"] = "application/json";
  const response = await fetch(address(path, params), {
    ...more,
    headers,
    credentials: "omit",
    cache: "no-store",
  });
  if (response.ok) return response;
  let reason = `the server answered ${response.status}`;
  try {
    reason = (await response.json()).error ?? reason;
  } catch {
    // A proxy's own page: the status has to do.
  }
  throw new Refused(response.status, reason);
}

export async function getJson<T>(
  path: string,
  params: Params = {},
  signal?: AbortSignal,
): Promise<T> {
  return (await (await ask(path, params, { signal })).json()) as T;
}

/** Answers that come line by line. */
export async function* getLines<T>(
  path: string,
  params: Params,
  signal: AbortSignal,
): AsyncGenerator<T> {
  const response = await ask(path, params, { signal });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const lines = text.split("\n");
    text = lines.pop()!;
    for (const line of lines) yield JSON.parse(line) as T;
  }
}

export async function post<T>(path: string, params: Params, body: object): Promise<T> {
  const response = await ask(path, params, { method: "POST", body: JSON.stringify(body) });
  return (await response.json()) as T;
}

const VIEWS: Record<string, (b: ArrayBuffer, at: number, n: number) => Numbers> = {
  float32: (b, at, n) => new Float32Array(b, at, n),
  float64: (b, at, n) => new Float64Array(b, at, n),
  uint32: (b, at, n) => new Uint32Array(b, at, n),
  int32: (b, at, n) => new Int32Array(b, at, n),
  uint8: (b, at, n) => new Uint8Array(b, at, n),
};

/** Arrays as they came, without a copy: python/tdbg/ui/packing.py has the layout. */
export async function getArrays(
  path: string,
  params: Params,
  signal?: AbortSignal,
): Promise<Packed> {
  return unpack(await (await ask(path, params, { signal })).arrayBuffer());
}

export function unpack(buffer: ArrayBuffer): Packed {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const packed: Packed = { header, arrays: {}, shapes: {} };
  for (const { name, dtype, shape, offset } of header.arrays) {
    const count = (shape as number[]).reduce((a, b) => a * b, 1);
    packed.arrays[name] = VIEWS[dtype](buffer, 4 + length + offset, count);
    packed.shapes[name] = shape;
  }
  return packed;
}
