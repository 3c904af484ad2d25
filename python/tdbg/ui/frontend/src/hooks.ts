/** What components share: the address as state, and answers that follow the runs. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Link, onLink, onRing } from "./doorbell";

/** All state of the page, as the address holds it. */
export interface Route {
  run?: string;
  screen?: "findings" | "tensor" | "time" | "compare";
  /** When runs are compared: what aligns them, which two are divided, and the smallest difference in per cent that counts. */
  by?: string;
  pair?: string;
  differ?: string;
  tensor?: string;
  /** The worker that is looked at alone. */
  rank?: string;
  field?: string;
  role?: string;
  curve?: string;
  from?: string;
  to?: string;
  at?: string;
  runs?: string;
  find?: string;
  /** Of the table of runs: which part is shown; chosen runs, or "*" for all; its order, columns and groups. */
  view?: string;
  sel?: string;
  sort?: string;
  cols?: string;
  group?: string;
  /** Of charts of many runs: which are there, which stand first, how they are smoothed and coloured. */
  charts?: string;
  pins?: string;
  smooth?: string;
  color?: string;
  /** Of the herd: the run that is looked at. */
  of?: string;
  scale?: string;
  rows?: string;
  /** Branches of the map that somebody folded or unfolded. */
  fold?: string;
  /** Which rows of the map come first: undefined, those of the first layers, or the worst. */
  order?: string;
  axis?: string;
}

const routeListeners = new Set<() => void>();

export function readRoute(): Route {
  return Object.fromEntries(new URLSearchParams(location.search)) as Route;
}

/** Change the address: undefined takes a part away.  *quiet* leaves no entry to go back to. */
export function go(change: Partial<Route>, { quiet = false, fresh = false } = {}): void {
  const next: Route = { ...(fresh ? {} : readRoute()), ...change };
  const query = new URLSearchParams(
    Object.entries(next).filter(([, v]) => v !== undefined && v !== "") as [string, string][],
  );
  const address = `${location.pathname}${query.size ? `?${query}` : ""}`;
  if (address === location.pathname + location.search) return;
  if (quiet) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  for (const listener of routeListeners) listener();
}

/** The same without an entry to go back to. */
export function adjust(change: Partial<Route>): void {
  go(change, { quiet: true });
}

/** Sets a part of the address; what is usual need not stand there. */
export function setter(name: keyof Route, usual?: string): (value: string) => void {
  return (value) => adjust({ [name]: value === usual ? undefined : value });
}

/** Moves the cursor that all charts share. */
export function setCursor(place: number | undefined): void {
  adjust({ at: place === undefined ? undefined : String(place) });
}

export function href(change: Route): string {
  return `?${new URLSearchParams(Object.entries(change).filter(([, v]) => v !== undefined) as [string, string][])}`;
}

export function useRoute(): Route {
  const [route, setRoute] = useState(readRoute);
  useEffect(() => {
    const changed = () => setRoute(readRoute());
    routeListeners.add(changed);
    addEventListener("popstate", changed);
    return () => {
      routeListeners.delete(changed);
      removeEventListener("popstate", changed);
    };
  }, []);
  return route;
}

export function useLink(): Link {
  const [link, setLink] = useState<Link>("connecting");
  useEffect(() => onLink(setLink), []);
  return link;
}

/** A number that grows when the run has changed. */
export function useVersion(run: string): number {
  const [version, setVersion] = useState(0);
  useEffect(
    () => onRing(({ changed }) => changed && run in changed && setVersion((before) => before + 1)),
    [run],
  );
  return version;
}

export interface Answer<T> {
  data: T | null;
  error: Error | null;
  /** Of which question the data are the answer. */
  key: string;
}

/**
 * The answer to a question, asked again when the version has changed.
 *
 * One question is under way at a time; what rings meanwhile is asked once, afterwards.  An old
 * answer stays until the new one is there.
 */
export function useAnswer<T>(
  key: string,
  version: number,
  fetcher: (signal: AbortSignal) => Promise<T>,
): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ data: null, error: null, key: "" });
  const state = useRef({ busy: "", due: false, control: new AbortController(), latest: fetcher });
  state.current.latest = fetcher;
  useEffect(() => {
    const held = state.current;
    const run = async () => {
      if (!key) return;
      if (held.busy === key) {
        held.due = true;
        return;
      }
      held.control.abort();
      const control = new AbortController();
      held.control = control;
      held.busy = key;
      held.due = false;
      try {
        const data = await held.latest(control.signal);
        if (!control.signal.aborted) setAnswer({ data, error: null, key });
      } catch (error) {
        if (!control.signal.aborted)
          setAnswer((before) => ({ ...before, error: error as Error, key }));
      }
      if (control.signal.aborted) return;
      held.busy = "";
      if (held.due) void run();
    };
    void run();
  }, [key, version]);
  useEffect(() => () => state.current.control.abort(), []);
  return answer;
}

/** Width and height of an element, as it changes. */
export function useSize(): [{ current: HTMLDivElement | null }, { width: number; height: number }] {
  const ref = useRef<HTMLDivElement>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const element = ref.current!;
    const measure = () => setSize({ width: element.clientWidth, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);
  return [ref, size];
}

/** Grows when the theme changes: canvases are drawn again in its colours. */
export function useTheme(): number {
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setTheme((before) => before + 1);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return theme;
}
