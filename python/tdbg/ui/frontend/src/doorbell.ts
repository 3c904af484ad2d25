/**
 * Hears from the server that there is something new.
 *
 * Browsers allow six connections to a server, streams included.  So one tab of all, whoever
 * holds the lock, has the stream, and passes on what it hears.  Hidden tabs watch nothing.
 */
import { ask, Refused, TAB } from "./api";

export interface Ring {
  /** Another one when runs have come or gone, or somebody has said something about one. */
  listing?: string;
  /** Versions of runs that have changed, and the steps up to which they are complete. */
  changed?: Record<string, number>;
  last?: Record<string, number>;
  /** Others where recorded steps were replaced. */
  epoch?: Record<string, number>;
}
export type Link = "connecting" | "live" | "lost" | "refused";

type Word =
  | { kind: "watch"; tab: string; runs: string[] }
  | { kind: "who" }
  | { kind: "ring"; ring: Ring }
  | { kind: "link"; link: Link };

const QUIET_MS = 25_000;
const place = new URL(".", document.baseURI).pathname;
const tab = TAB;
const channel = "BroadcastChannel" in window ? new BroadcastChannel(`tdbg ${place}`) : null;

let watched: string[] = [];
let isHolder = false;
let isConnecting = false;
let restart: AbortController | null = null;
const tabs = new Map<string, string[]>();
const listeners = new Set<(ring: Ring) => void>();
const linkListeners = new Set<(link: Link) => void>();
let link: Link = "connecting";
/** What was last heard of runs. */
const complete: Record<string, number> = {};
const epochs: Record<string, number> = {};

export function onRing(listener: (ring: Ring) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function onLink(listener: (link: Link) => void): () => void {
  linkListeners.add(listener);
  listener(link);
  return () => linkListeners.delete(listener);
}

/** The step up to which nothing more will come of a run, as far as was heard; -1: nothing was. */
export function completeOf(run: string): number {
  return complete[run] ?? -1;
}

/** What is kept of the steps of some runs holds for their epoch. */
export function epochOf(...runs: (string | undefined)[]): string {
  return runs.map((run) => epochs[run ?? ""]).join();
}

function ring(heard: Ring): void {
  Object.assign(complete, heard.last);
  Object.assign(epochs, heard.epoch);
  for (const listener of listeners) listener(heard);
}

/** Say which runs this tab shows. */
export function watch(runs: string[]): void {
  watched = runs;
  announce();
}

export function start(): void {
  channel?.addEventListener("message", (event: MessageEvent<Word>) => hear(event.data));
  document.addEventListener("visibilitychange", announce);
  addEventListener("pagehide", () => say({ kind: "watch", tab, runs: [] }));
  if (navigator.locks && channel) {
    void navigator.locks.request(`tdbg ${place}`, hold);
    say({ kind: "who" });
  } else {
    void hold();
  }
}

function announce(): void {
  const runs = document.hidden ? [] : watched;
  if (isHolder) hear({ kind: "watch", tab, runs });
  else say({ kind: "watch", tab, runs });
}

function say(word: Word): void {
  channel?.postMessage(word);
}

function hear(word: Word): void {
  switch (word.kind) {
    case "watch": {
      if (!isHolder) return;
      const before = JSON.stringify(everyRun());
      if (word.runs.length) tabs.set(word.tab, word.runs);
      else tabs.delete(word.tab);
      if (JSON.stringify(everyRun()) !== before || !isConnecting) restart?.abort();
      else say({ kind: "link", link });
      return;
    }
    case "who":
      if (isHolder) say({ kind: "link", link });
      else announce();
      return;
    case "ring":
      ring(word.ring);
      return;
    case "link":
      setLink(word.link);
  }
}

function everyRun(): string[] {
  return [...new Set([...tabs.values()].flat())].sort().slice(0, 64);
}

function setLink(now: Link): void {
  link = now;
  if (isHolder) say({ kind: "link", link });
  for (const listener of linkListeners) listener(now);
}

/** Have the stream for as long as this tab is there. */
async function hold(): Promise<void> {
  isHolder = true;
  tabs.set(tab, document.hidden ? [] : watched);
  say({ kind: "who" });
  for (;;) {
    restart = new AbortController();
    const pause = new AbortController();
    try {
      await listen(restart);
    } catch (error) {
      if (!restart.signal.aborted) {
        setLink(error instanceof Refused && error.status === 401 ? "refused" : "lost");
        restart.signal.addEventListener("abort", () => pause.abort());
        await sleep(700 + 600 * Math.random(), pause.signal);
      }
    }
  }
}

async function listen(control: AbortController): Promise<void> {
  isConnecting = true;
  const response = await ask("events", { run: everyRun() }, { signal: control.signal });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let timer = 0;
  try {
    for (;;) {
      // A proxy may keep a connection whose server is gone.
      timer = window.setTimeout(() => void reader.cancel(), QUIET_MS);
      const { value, done } = await reader.read();
      clearTimeout(timer);
      if (done) throw new Error("the stream has ended");
      if (link !== "live") setLink("live");
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const line = text
          .slice(0, end)
          .split("\n")
          .find((each) => each.startsWith("data: "));
        text = text.slice(end + 2);
        if (!line) continue;
        const heard = JSON.parse(line.slice(6)) as Ring;
        say({ kind: "ring", ring: heard });
        ring(heard);
      }
    }
  } finally {
    clearTimeout(timer);
    isConnecting = false;
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
