/** Numbers and names as people read them. */

const whole = new Intl.NumberFormat("en-US");

export function count(n: number): string {
  return whole.format(n);
}

export function counted(n: number, what: string): string {
  return `${count(n)} ${what}${n === 1 ? "" : "s"}`;
}

/** Further whole numbers have neighbours that float32, of which charts are made, lacks. */
const FLOAT32_WHOLE = 2 ** 24;

/** Three digits that count, whatever the size; all of them of a whole number. */
export function number(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return { nan: "NaN", inf: "∞", "-inf": "−∞" }[value] ?? value;
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size <= FLOAT32_WHOLE && Number.isInteger(value)) return exact(value);
  if (size >= 1e5 || size < 1e-3) {
    const [head, tail] = value.toExponential(2).split("e");
    return `${minus(String(Number(head)))}e${minus(String(Number(tail)))}`;
  }
  return minus(whole.format(Number(value.toPrecision(size >= 1000 ? 4 : 3))));
}

/** The same beside an axis, where there is room for seven characters. */
export function tickText(value: number): string {
  if (Math.abs(value) < 1e6) return number(value);
  return minus(value.toExponential().replace("e+", "e"));
}

/** The same of a number that came as JSON: every whole one has all its digits. */
export function exact(value: number | string | null): string {
  if (typeof value === "string" && /^-?\d+$/.test(value)) return minus(whole.format(BigInt(value)));
  return Number.isSafeInteger(value) ? minus(whole.format(Number(value) + 0)) : number(value);
}

function minus(text: string): string {
  return text.replace(/^-/, "−");
}

export function percent(share: number): string {
  const value = share * 100;
  if (value === 0 || value >= 10) return `${value.toFixed(0)} %`;
  return `${value >= 0.1 ? value.toFixed(1) : value.toPrecision(1)} %`;
}

export function bytes(n: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 999.5 && i < units.length - 1; i++) n /= 1000;
  return `${n < 10 && i ? n.toFixed(1) : n.toFixed(0)} ${units[i]}`;
}

/**
 * A text of somebody else, harmless to look at: characters that control, reorder or hide are
 * shown by their numbers.  Markup needs nothing: texts never become markup here.
 */
export function plain(text: string): string {
  return text.replace(
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** The same, and not longer than a line holds: the end of a name says most. */
export function shorten(text: string, longest = 60): string {
  const safe = plain(text);
  if (safe.length <= longest) return safe;
  const head = Math.floor(longest / 3);
  return `${safe.slice(0, head)}…${safe.slice(safe.length - (longest - head - 1))}`;
}

export function shape(extents: number[] | null): string {
  if (!extents) return "";
  return extents.length ? extents.join(" × ") : "scalar";
}

export function steps(first: number, last: number): string {
  return first === last ? `step ${count(first)}` : `steps ${count(first)}–${count(last)}`;
}

export function ago(seconds: number): string {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** Names in the order in which people count: layer2 before layer10. */
export function compareNames(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}
